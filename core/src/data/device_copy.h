// Copies batches to a device, on another stream than the model's, so that copies and the model's work overlap.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <memory>
#include <optional>

#include "lockstep/data/batch_source.h"

namespace lockstep::data {

// The device with its number: without one, the calling thread's current device. Throws DataError (kUnavailable) when
// this process cannot use it.
torch::Device usable_device(torch::Device device);

// Whether LibTorch has page-locked memory in this program.
bool has_page_locked_memory();

// A batch that is being copied. The thread that starts the copy gives it to the thread that uses the batch.
struct CopiedBatch {
  std::unique_ptr<AnyBatch> batch;
  std::optional<c10::Event> done = std::nullopt;
};

// Starts the copy. Returns at once if the batch is in page-locked memory, otherwise when it is copied. For the CPU it
// returns the batch itself. Any thread.
CopiedBatch start_copy(std::unique_ptr<AnyBatch> batch, torch::Device device);

// Returns the batch for work that the calling thread enqueues from now on; does not block.
std::unique_ptr<AnyBatch> finish_copy(CopiedBatch copied);

}  // namespace lockstep::data
