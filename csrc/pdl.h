// The run-time switch of programmatic dependent launch (PDL). A plan's flag says that its kernel gains from PDL;
// dispatch launches with it where, besides, the switch is on for the calling thread: as that thread set it, else as the
// process's default, CUDAL2_PDL, has it. Sees no torch, so that a test compiles it alone.
#pragma once

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "runtime/gemm.h"

namespace cudal2 {

enum class PdlSwitch : int { unset = -1, off = 0, on = 1 };  // unset: the process's default

inline thread_local PdlSwitch pdl_of_thread = PdlSwitch::unset;

struct PdlDefault {
  bool on = false;
  std::string error;  // empty, or what is wrong with CUDAL2_PDL
};

// CUDAL2_PDL, read once.
inline const PdlDefault& pdl_default() {
  static const PdlDefault found = [] {
    PdlDefault read;
    const char* text = std::getenv("CUDAL2_PDL");
    if (text == nullptr) return read;
    std::string value = text;
    read.on = value == "1";
    if (read.on || value == "0") return read;
    for (char& letter : value) {
      if (letter < ' ' || letter > '~') letter = '?';  // Python could not decode it
    }
    read.error = "CUDAL2_PDL='" + value + "'; expected 0 or 1";
    return read;
  }();
  return found;
}

// Whether dispatch may launch with PDL on this thread now. Throws std::runtime_error if CUDAL2_PDL is neither 0 nor 1,
// also where the thread has set its switch: a bad value does not wait for the thread that has not.
inline bool pdl_enabled() {
  const PdlDefault& process = pdl_default();
  if (!process.error.empty()) throw std::runtime_error(process.error);
  return pdl_of_thread == PdlSwitch::unset ? process.on : pdl_of_thread == PdlSwitch::on;
}

// The knobs that dispatch launches a plan with, on this thread and now.
inline LaunchKnobs dispatched(const LaunchKnobs& planned) {
  LaunchKnobs knobs = planned;
  knobs.pdl = pdl_enabled() && planned.pdl;
  return knobs;
}

}  // namespace cudal2
