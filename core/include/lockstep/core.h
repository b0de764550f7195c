// All of the component core that a training program uses: process groups, collectives and objects, DDP and
// DataParallel, synchronised batch normalisation, sharded optimizers, metrics, schedulers, samplers and the DataLoader,
// checkpoints, training that outlives its ranks, and spawn. Not here: the stores (lockstep/store), and the engine
// without LibTorch (lockstep/engine).
#pragma once

#include <torch/torch.h>  // IWYU pragma: export

#include "lockstep/c10d/device_mesh.h"               // IWYU pragma: export
#include "lockstep/c10d/distributed.h"               // IWYU pragma: export
#include "lockstep/c10d/functional.h"                // IWYU pragma: export
#include "lockstep/c10d/objects.h"                   // IWYU pragma: export
#include "lockstep/checkpoint/checkpoint.h"          // IWYU pragma: export
#include "lockstep/checkpoint/checkpoint_manager.h"  // IWYU pragma: export
#include "lockstep/checkpoint/state_dict.h"          // IWYU pragma: export
#include "lockstep/checkpoint/torch_file.h"          // IWYU pragma: export
#include "lockstep/data/data_loader.h"               // IWYU pragma: export
#include "lockstep/data/data_partitioner.h"          // IWYU pragma: export
#include "lockstep/data/distributed_sampler.h"       // IWYU pragma: export
#include "lockstep/data/iterable_dataset.h"          // IWYU pragma: export
#include "lockstep/data/samplers.h"                  // IWYU pragma: export
#include "lockstep/data/tensor_dataset.h"            // IWYU pragma: export
#include "lockstep/data/views.h"                     // IWYU pragma: export
#include "lockstep/elastic/elastic_training.h"       // IWYU pragma: export
#include "lockstep/elastic/micro_batch_loader.h"     // IWYU pragma: export
#include "lockstep/launch/preemption.h"              // IWYU pragma: export
#include "lockstep/launch/spawn.h"                   // IWYU pragma: export
#include "lockstep/nn/activation_checkpoint.h"       // IWYU pragma: export
#include "lockstep/nn/as_module.h"                   // IWYU pragma: export
#include "lockstep/nn/average_gradients.h"           // IWYU pragma: export
#include "lockstep/nn/captured_step.h"               // IWYU pragma: export
#include "lockstep/nn/clip_grad.h"                   // IWYU pragma: export
#include "lockstep/nn/comm_hook.h"                   // IWYU pragma: export
#include "lockstep/nn/data_parallel.h"               // IWYU pragma: export
#include "lockstep/nn/distributed_data_parallel.h"   // IWYU pragma: export
#include "lockstep/nn/exponential_moving_average.h"  // IWYU pragma: export
#include "lockstep/nn/fast_batch_norm.h"             // IWYU pragma: export
#include "lockstep/nn/fast_convolution.h"            // IWYU pragma: export
#include "lockstep/nn/finite_check.h"                // IWYU pragma: export
#include "lockstep/nn/fused_step.h"                  // IWYU pragma: export
#include "lockstep/nn/grad_scaler.h"                 // IWYU pragma: export
#include "lockstep/nn/gradient_accumulation.h"       // IWYU pragma: export
#include "lockstep/nn/lr_schedules.h"                // IWYU pragma: export
#include "lockstep/nn/memory_format.h"               // IWYU pragma: export
#include "lockstep/nn/metrics.h"                     // IWYU pragma: export
#include "lockstep/nn/mixed_precision.h"             // IWYU pragma: export
#include "lockstep/nn/one_cycle_lr.h"                // IWYU pragma: export
#include "lockstep/nn/power_sgd.h"                   // IWYU pragma: export
#include "lockstep/nn/scatter.h"                     // IWYU pragma: export
#include "lockstep/nn/shared_step.h"                 // IWYU pragma: export
#include "lockstep/nn/sync_batch_norm.h"             // IWYU pragma: export
#include "lockstep/nn/zero_redundancy_optimizer.h"   // IWYU pragma: export
