// Copies of batches to a device, on a stream of their own, so that they overlap with the model's work.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <optional>

#include "lockstep/data/dataset.h"

namespace lockstep::data {

// Throws DataError (kUnavailable) when this process cannot use the device.
void require_device(torch::Device device);

// A batch on its way. Moved from the thread that started the copy to the one that uses the batch.
struct CopiedBatch {
  Example batch;
  std::optional<c10::Event> done;
};

// Starts the copy and returns at once when the batch is in page-locked memory; else when it is copied. For the CPU the
// batch as it is. Any thread.
CopiedBatch start_copy(Example batch, torch::Device device);

// The batch for the work that the calling thread enqueues from now on; does not block.
Example finish_copy(CopiedBatch copied);

}  // namespace lockstep::data
