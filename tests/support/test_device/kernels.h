// The operations of the test device.
#pragma once

#include <c10/core/Device.h>

namespace lockstep::test::device {

void register_kernels();
void register_autocast();

// The program waits for the device; unless a kernel does, that is counted.
void count_host_wait(c10::DeviceIndex device);

}  // namespace lockstep::test::device
