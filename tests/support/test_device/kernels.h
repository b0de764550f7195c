// The operations of the test device.
#pragma once

namespace lockstep::test::device {

void register_kernels();
void register_autocast();

}  // namespace lockstep::test::device
