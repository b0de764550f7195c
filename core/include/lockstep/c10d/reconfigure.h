// Going on without a restart: after a death the living processes form the world, or a group, anew. Dead processes are
// left out, and new processes may be added.
//
//   init_process_group("", {.enable_reconfigure = true});
//   bool go_on = true;  // no rank was lost since the model was wrapped
//   for (int step = 0; step < steps;) {
//     try {
//       if (!go_on) {
//         reconfigure();  // collective over the survivors: get_rank() and get_world_size() are new
//         wrap_model_again();
//         torch::Tensor next = torch::tensor({step});  // a rank may have finished a step that another has not
//         all_reduce(next, {.op = c10d::ReduceOp::MIN});
//         step = next.item<int>();
//         go_on = true;
//       }
//       train(step);
//       ++step;
//     } catch (const std::exception& e) {
//       if (error_code(e) != ErrorCode::kPeerFailed && error_code(e) != ErrorCode::kAborted) throw;
//       go_on = false;
//     }
//   }
//
// ElasticTraining (lockstep/elastic/elastic_training.h) is the ready-made form of this loop.
//
// All that communicates is in the `try`, because the next rank may die at any time. kPeerFailed: this rank has seen a
// death. kAborted: another rank has seen one, and forms the world anew.
//
// The new world or group has a store of its own, in the process of a member. The launcher and the earlier rank 0 may be
// among the dead. Handles of earlier groups stay, and every use of them throws: the program makes groups, meshes,
// wrappers (DistributedDataParallel), synchronised layers with a group of their own and sharded optimizers again.
// Synchronised layers whose group is null follow the world. Tensors keep their memory; what was reduced when a rank
// died holds unspecified values (docs/errors.md).
//
// Ranks are counted anew, on each machine too: after the death of rank 1 of one machine, get_local_rank() on the
// earlier rank 2 is 1, and with NCCL local_device() is GPU 1. A model stays on the device where it was.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/c10d/process_groups.h"

namespace lockstep {

struct ReconfigureOptions {
  // The members: what get_reconfigure_handle() has returned in each, this process among them; the position is the new
  // rank. Empty: the processes of the present world (or group) that live, in the present order. Needs a world that was
  // made with InitOptions::enable_reconfigure, or by an earlier reconfigure().
  std::vector<std::string> handles = {};
  // With handles: the same on all members, and never used before in this world on any of them. Without: not used.
  std::int64_t uuid = 0;
  std::chrono::milliseconds timeout{-1};  // of the whole call; -1: the world's timeout
};

// Where this process can be met later. It stays valid until destroy_process_group(). The first call opens a small
// store, with a thread, at the address at which the other machines of the world reach this one. The program gives the
// handles to the members in any way. A newcomer makes a world of its own first, for example init_process_group("",
// {.rank = 0, .world_size = 1, .store = std::make_shared<comm::HashStore>()}).
std::string get_reconfigure_handle();

// Forms the world (`group` null) or a group anew, and returns it. Collective over the members; blocks until they are
// there. Operations under way first end with kAborted, "formed anew by reconfigure", here and on ranks that wait for
// this one. (After a death they end with the error that broke the group.) One call at a time: a second thread's call
// throws ArgumentError.
//
// The world: this process leaves all groups that were made from it. Without handles, the call waits until every living
// process of the present world has called too, and starts again if one dies meanwhile. A process counts as dead when
// its machine says so. If the network is broken and only the smaller part of the processes can be reached, the other
// part may go on elsewhere: then throws kUnavailable. A group: the members must be ranks of the present world; other
// groups go on.
//
// Throws what new_group throws, and more. Three errors change nothing: ArgumentError for handles that are wrong by
// themselves (garbage; of another build or job; one twice; this process's own missing), kUnsupported with the backend
// mpi, and kMismatch if this process has used the uuid before. After every other error this process is in no world (or
// group) until another reconfigure() succeeds. In no world, is_initialized() stays true, and destroy_process_group()
// and get_reconfigure_handle() work. All other calls, get_rank() too, throw kAborted: "in no world, because ...".
//
// kMismatch: members give different handles, or another member has used the uuid before. kTimeout names the ranks that
// live and have not called. kPeerFailed: a process whose handle was given has ended. kUnavailable: the larger part of
// the processes cannot be reached, or something that a group needs (such as shared memory) was missing in two attempts.
ProcessGroup reconfigure(const ReconfigureOptions& options = {}, const ProcessGroup& group = nullptr);

}  // namespace lockstep
