// The PTX that the kernels are written in, one instruction a function. Shared-memory addresses are 32-bit (`smem_u32`).
#pragma once

#include <cstdint>

#include "kernels/element.cuh"

namespace cudal2::ptx {

__device__ __forceinline__ uint32_t smem_u32(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Programmatic dependent launch ---------------------------------------------------------------------------------------
// Both do nothing in a kernel that was launched without the attribute.

// Waits until the kernels before this one on the stream have finished and their writes are visible.
__device__ __forceinline__ void grid_dependency_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel on the stream start its prologue.
__device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// mbarrier ------------------------------------------------------------------------------------------------------------

__device__ __forceinline__ void mbarrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to the async proxy and to the cluster.
__device__ __forceinline__ void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives on the barrier at the same offset in another CTA of the cluster. Not .release.cluster: that makes the
// compiler put a MEMBAR.ALL.GPU before every arrival (seen to double a kernel's time), and what is signalled here, that
// wgmma has read a buffer, needs no memory ordering.
__device__ __forceinline__ void mbarrier_arrive_cluster(uint32_t barrier, uint32_t cta) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}\n" ::"r"(barrier),
      "r"(cta)
      : "memory");
}

__device__ __forceinline__ void mbarrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "WAIT:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra DONE;\n"
      "bra WAIT;\n"
      "DONE:\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Named barriers of a CTA: `threads` of them pass sync together once all have arrived; arrive does not wait.
// -----------

__device__ __forceinline__ void named_barrier_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

__device__ __forceinline__ void named_barrier_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Cluster -------------------------------------------------------------------------------------------------------------

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Waits until every thread of the cluster is here. Relaxed: execution is ordered, ordinary memory accesses are not (an
// ordered one costs a MEMBAR.ALL.GPU and an L1 invalidation).
__device__ __forceinline__ void cluster_sync_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// The two halves of it, for threads that have something to do in between. Every thread takes part in both.
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }

// Address, in the cluster's window, of `address` in another CTA.
__device__ __forceinline__ uint32_t map_to_cta(uint32_t address, uint32_t cta) {
  uint32_t remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(cta));
  return remote;
}

// Sends 16 bytes to another CTA's shared memory and counts them at a barrier of that CTA.
__device__ __forceinline__ void store_async(uint32_t address, uint32_t barrier, float x, float y, float z, float w) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(address),
      "f"(x), "f"(y), "f"(z), "f"(w), "r"(barrier)
      : "memory");
}

// Registers: a warpgroup gives some of its own back to the CTA's pool, or takes some. Every warp of it takes part.
// --------

template <int Registers>
__device__ __forceinline__ void release_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}

template <int Registers>
__device__ __forceinline__ void acquire_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}

// Whether this thread is the one that speaks for its warp, the same one every time. All of the warp ask. The compiler
// then knows that one thread is meant, and keeps addresses in uniform registers.
__device__ __forceinline__ bool elect_one() {
  uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xFFFFFFFF;\n"
      "selp.b32 %0, 1, 0, p;\n"
      "}\n"
      : "=r"(elected));
  return elected != 0;
}

// TMA -----------------------------------------------------------------------------------------------------------------

__device__ __forceinline__ void prefetch_tensor_map(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Loads the box at (x, y) of a 2-D tensor: x counts along the contiguous dimension.
__device__ __forceinline__ void tma_load(uint32_t destination, const void* map, uint32_t barrier, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
          destination),
      "l"(map), "r"(barrier), "r"(x), "r"(y)
      : "memory");
}

// The same, into the same offset of every CTA whose bit is set in `ctas`, each signalled at its own barrier.
__device__ __forceinline__ void tma_load_multicast(uint32_t destination, const void* map, uint32_t barrier, int x,
                                                   int y, uint16_t ctas) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(destination),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "h"(ctas)
      : "memory");
}

// Stores a box from shared memory; what lies outside the tensor is left out. Asynchronous: the stores of a thread form
// groups, and a group is waited for before its buffer is written again or the CTA exits.
__device__ __forceinline__ void tma_store(const void* map, uint32_t source, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map), "r"(source),
               "r"(x), "r"(y)
               : "memory");
}
__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until all but the last `Pending` groups have been read from shared memory.
template <int Pending>
__device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Pending) : "memory");
}

// Makes this thread's writes to shared memory visible to the TMA unit.
__device__ __forceinline__ void proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// WGMMA ---------------------------------------------------------------------------------------------------------------

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int Pending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

// mma.sync: d (16 x 8, fp32) += a (16 x 16) @ b (16 x 8). Lane (g, t) = (lane / 4, lane % 4) holds rows g and g + 8 of
// a at k = 2t, 2t+1 (a0, a1) and 2t+8, 2t+9 (a2, a3), column g of b at the same k, rows g and g + 8 of d at n = 2t,
// 2t+1.
template <class T>
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                             uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<T, f16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
#endif
}

// stmatrix: four 8x8 matrices of 16-bit elements, or two; lane l gives the address of row l % 8 of matrix l / 8.
// `Transposed`: of the matrix's transpose.

template <bool Transposed>
__device__ __forceinline__ void store_matrix_x4(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  if constexpr (Transposed) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a),
                 "r"(b), "r"(c), "r"(d)
                 : "memory");
  } else {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
                 "r"(c), "r"(d)
                 : "memory");
  }
}

template <bool Transposed>
__device__ __forceinline__ void store_matrix_x2(uint32_t address, uint32_t a, uint32_t b) {
  if constexpr (Transposed) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(a), "r"(b)
                 : "memory");
  } else {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(a), "r"(b) : "memory");
  }
}

// An 8x8 matrix of 16-bit elements, two a lane as mma.sync has them, transposed. The whole warp takes part.
__device__ __forceinline__ uint32_t transposed_matrix(uint32_t a) {
  uint32_t d;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(a));
  return d;
}

__device__ __forceinline__ uint4 load_shared(uint32_t address) {
  uint4 value;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address)
               : "memory");
  return value;
}

__device__ __forceinline__ uint32_t load_shared_u32(uint32_t address) {
  uint32_t value;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}

__device__ __forceinline__ void store_shared_u32(uint32_t address, uint32_t value) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

__device__ __forceinline__ float4 load_shared_f32(uint32_t address) {
  float4 value;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(address)
               : "memory");
  return value;
}

// Meeting other CTAs through global memory. Release and acquire, at the device's scope.
__device__ __forceinline__ uint32_t atomic_add_ordered(uint32_t* word, uint32_t value) {
  uint32_t before;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;" : "=r"(before) : "l"(word), "r"(value) : "memory");
  return before;
}

__device__ __forceinline__ uint32_t atomic_add_relaxed(uint32_t* word, uint32_t value) {
  uint32_t before;
  asm volatile("atom.add.relaxed.gpu.global.u32 %0, [%1], %2;" : "=r"(before) : "l"(word), "r"(value) : "memory");
  return before;
}

__device__ __forceinline__ void reduce_add_release(uint32_t* word, uint32_t value) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

__device__ __forceinline__ uint32_t load_acquire(const uint32_t* word) {
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}

// cp.async ------------------------------------------------------------------------------------------------------------

// Copies the first `bytes` (0 to 16) of 16 bytes and zero-fills the rest. Synchronous before compute capability 8.0.
__device__ __forceinline__ void cp_async_16(void* destination, const void* source, int bytes) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(smem_u32(destination)), "l"(source), "r"(bytes)
               : "memory");
#else
  uint4 value = make_uint4(0, 0, 0, 0);
  if (bytes == 16) {
    value = *static_cast<const uint4*>(source);
  } else {
    for (int i = 0; i < bytes / 2; ++i) {
      reinterpret_cast<uint16_t*>(&value)[i] = static_cast<const uint16_t*>(source)[i];
    }
  }
  *static_cast<uint4*>(destination) = value;
#endif
}

// Copies 16 bytes where `condition` holds.
__device__ __forceinline__ void cp_async_16_if(bool condition, void* destination, const void* source) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "{\n"
      ".reg .pred copied;\n"
      "setp.ne.b32 copied, %0, 0;\n"
      "@copied cp.async.cg.shared.global.L2::128B [%1], [%2], 16;\n"
      "}\n" ::"r"(static_cast<int>(condition)),
      "r"(smem_u32(destination)), "l"(source)
      : "memory");
#else
  if (condition) *static_cast<uint4*>(destination) = *static_cast<const uint4*>(source);
#endif
}

// Copies the first `count` (0 to 8) of 8 elements in pieces of `width` (8, 4, 2 or 1), to which `source` is aligned,
// and zero-fills the rest.
__device__ __forceinline__ void copy_narrow(void* destination, const void* source, int count, int width) {
  auto* const to = static_cast<uint16_t*>(destination);
  const auto* const from = static_cast<const uint16_t*>(source);
  if (width == 8) {
    cp_async_16(to, from, count * 2);
    return;
  }
#if __CUDA_ARCH__ >= 800
  if (width == 4) {
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
      const int bytes = min(max(count - i, 0), 4) * 2;
      asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(smem_u32(to + i)), "l"(from + i), "r"(bytes)
                   : "memory");
    }
    return;
  }
  if (width == 2) {
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const int bytes = min(max(count - i, 0), 2) * 2;
      asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(smem_u32(to + i)), "l"(from + i), "r"(bytes)
                   : "memory");
    }
    return;
  }
#endif
  uint16_t values[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) values[i] = i < count ? from[i] : uint16_t{0};
  uint4 packed;
  __builtin_memcpy(&packed, values, 16);
  *static_cast<uint4*>(destination) = packed;
}

__device__ __forceinline__ void cp_async_commit() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

template <int Pending>
__device__ __forceinline__ void cp_async_wait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
#endif
}

}  // namespace cudal2::ptx
