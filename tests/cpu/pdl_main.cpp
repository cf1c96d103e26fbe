// The switch of csrc/pdl.h, for test_pdl.py. Prints a line for each setting of the thread, plan's flag and what
// dispatch launches with then, and one for a thread that set nothing; or the error, with exit code 1.
#include "pdl.h"

#include <cstdio>
#include <thread>

using namespace cudal2;

namespace {

void print(const char* thread, bool flag) {
  const LaunchKnobs planned{4, 1, 132, 3, flag};
  const LaunchKnobs knobs = dispatched(planned);
  const bool others = knobs.group == 4 && knobs.raster == 1 && knobs.ctas == 132 && knobs.split == 3;
  std::printf("%s plan=%d launched=%d%s\n", thread, flag, knobs.pdl, others ? "" : " other knobs changed");
}

}  // namespace

int main() {
  try {
    for (const bool flag : {false, true}) {
      pdl_of_thread = PdlSwitch::unset;
      print("unset", flag);
      pdl_of_thread = PdlSwitch::off;
      print("off", flag);
      pdl_of_thread = PdlSwitch::on;
      print("on", flag);
    }
    std::thread([] { print("another", true); }).join();
  } catch (const std::exception& error) {
    std::puts(error.what());
    return 1;
  }
}
