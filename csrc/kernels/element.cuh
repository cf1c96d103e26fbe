// The two element types and their conversions.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace cudal2 {

using f16 = __half;
using bf16 = __nv_bfloat16;

template <class T>
__device__ __forceinline__ float to_float(T value) {
  if constexpr (std::is_same_v<T, f16>) {
    return __half2float(value);
  } else {
    return __bfloat162float(value);
  }
}

// Two fp32 values rounded to nearest even and packed, `low` in the lower half.
template <class T>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  uint32_t bits;
  if constexpr (std::is_same_v<T, f16>) {
    __half2 pair = __floats2half2_rn(low, high);
    __builtin_memcpy(&bits, &pair, 4);
  } else {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    __builtin_memcpy(&bits, &pair, 4);
  }
  return bits;
}

// bias[column], or 0 where there is no bias or no such column. Two-byte loads: a bias may be a misaligned slice.
template <class T>
__device__ __forceinline__ float load_bias(const T* bias, int column, int columns) {
  return bias != nullptr && column < columns ? to_float(bias[column]) : 0.0f;
}

}  // namespace cudal2
