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
// The new world or group has a store of its own, in the process of a member. Whoever has died, the launcher's store and
// the earlier rank 0 among them, is not needed. Handles of earlier groups stay, and every use of them throws: the
// program makes groups, meshes, wrappers (DistributedDataParallel), synchronised layers with a group of their own and
// sharded optimizers again. Synchronised layers whose group is null follow the world. Tensors keep their memory; what
// was reduced when a rank died holds unspecified values (docs/errors.md).
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
// there. Operations under way end with kAborted first, here and on ranks that wait for this one: "formed anew by
// reconfigure". (After a death they end with the error that broke the group.) One call at a time: while a thread is in
// it, the call of another thread throws ArgumentError.
//
// The world: all groups made from it are left. Without handles, waits for every process of the present world that lives
// until it calls too, and starts again if one dies meanwhile. A process counts as dead when its machine says so; if
// only the smaller part of the processes can be reached and the others may live, because the network is broken, throws
// kUnavailable: they may go on elsewhere. A group: the members must be of the present world; other groups go on.
//
// Throws what new_group throws, and more. Three errors leave all as before: ArgumentError for handles that are wrong by
// themselves (garbage; of another build or job; one twice; the own one missing), kUnsupported with the backend mpi, and
// kMismatch where this process has used the uuid. After every other error this process is in no world (or group) until
// another reconfigure() succeeds. In no world, is_initialized() stays true, destroy_process_group() and
// get_reconfigure_handle() work, and all other calls, get_rank() too, throw kAborted: "in no world, because ...".
// kMismatch: members give different handles, or the uuid was used. kTimeout: who lives and has not called. kPeerFailed:
// a member with a handle ended. kUnavailable: the larger part of the processes cannot be reached, or what a group needs
// (shared memory, for example) was not there twice.
ProcessGroup reconfigure(const ReconfigureOptions& options = {}, const ProcessGroup& group = nullptr);

}  // namespace lockstep
