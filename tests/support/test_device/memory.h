// The memory of the test device, and page-locked memory of the host.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

#include <cstddef>

namespace lockstep::test::device {

// Allocates on the calling thread's current device and stream. Addresses are places in a range that nobody may touch;
// no address is given out twice.
c10::Allocator& allocator();

// Where the `bytes` at `address` really are. Throws unless they are in one block of that device that has not been
// freed.
std::byte* open(const void* address, std::size_t bytes, c10::DeviceIndex device);

// The device on which the address was allocated; -1 if on none.
c10::DeviceIndex device_of(const void* address);

// When the block is freed, work that is then in this stream is done first.
void record_use(const void* address, c10::Stream stream);

c10::Allocator& pinned_allocator();
bool is_pinned(const void* address);

}  // namespace lockstep::test::device
