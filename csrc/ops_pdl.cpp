// The switch of programmatic dependent launch (pdl.h) as cudal2/switches.py reaches it, through ctypes. No torch ops: a
// compiled or traced graph would record them, and drop or move what has no result.
#include "pdl.h"

#include <utility>

using namespace cudal2;

extern "C" {

// nullptr, or what is wrong with CUDAL2_PDL; then the others are not to be called.
CUDAL2_API const char* cudal2_pdl_error() {
  const std::string& error = pdl_default().error;
  return error.empty() ? nullptr : error.c_str();
}

CUDAL2_API int cudal2_pdl_enabled() { return pdl_enabled(); }

// Sets the calling thread's switch, a PdlSwitch, and returns what it was.
CUDAL2_API int cudal2_exchange_pdl(int state) {
  return static_cast<int>(std::exchange(pdl_of_thread, static_cast<PdlSwitch>(state)));
}
}
