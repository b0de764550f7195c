// The operations of the test device.
#pragma once

namespace lockstep::test::device {

void register_kernels();

}  // namespace lockstep::test::device
