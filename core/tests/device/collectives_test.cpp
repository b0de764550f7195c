// Tensors of a device go through the CPU engine: every collective, from and to every kind of device memory. The
// arithmetic itself is tested on the CPU (core/tests/c10d), what is copied in traffic_test.cpp.
#include "lockstep/c10d/collectives.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include "device/device_ranks.h"
#include "lockstep/c10d/objects.h"
#include "nn/error_texts.h"
#include "support/both_forms.h"
#include "support/mpirun.h"

namespace lockstep::test {
namespace {

// Whatever else serves the device: the CPU engine, through page-locked memory.
const char* const kStaged = "lockstep";

enum class Memory { kWhole, kPart, kStrided };

struct Case {
  torch::ScalarType dtype;
  std::int64_t size;
  Memory memory;
  bool async;
  int rank;
  int world;
  torch::Device device;

  std::string text() const {
    return c10::str("rank ", rank, " of ", world, ", ", size, " x ", c10::toString(dtype), ", memory ",
                    static_cast<int>(memory), async ? ", async" : ", blocking");
  }
  // What rank `who` contributes, on the CPU.
  torch::Tensor values(int who, std::int64_t count = -1) const {
    return (torch::arange(count < 0 ? size : count) % 5 + who).to(dtype);
  }
  torch::Tensor zeros(std::int64_t count) const {
    const auto options = torch::TensorOptions(dtype).device(device);
    if (memory == Memory::kWhole) return torch::zeros({count}, options);
    if (memory == Memory::kPart) return torch::zeros({count + 8}, options).narrow(0, 3, count);
    return torch::zeros({count, 2}, options).select(1, 1);
  }
  torch::Tensor on_device(const torch::Tensor& values) const { return zeros(values.numel()).copy_(values); }
  torch::Tensor mine() const { return on_device(values(rank)); }
  torch::Tensor sum() const {
    torch::Tensor sum = values(0).to(torch::kLong);
    for (int who = 1; who < world; ++who) sum += values(who).to(torch::kLong);
    return sum.to(dtype);
  }
  std::vector<torch::Tensor> of_all() const {
    std::vector<torch::Tensor> all;
    for (int who = 0; who < world; ++who) all.push_back(values(who));
    return all;
  }
};

void check_reductions(const Case& c) {
  torch::Tensor tensor = c.mine();
  RUN(c, all_reduce, tensor);
  expect_on_device(tensor, c.device, c.sum(), "all_reduce " + c.text());
  tensor = c.mine();
  RUN(c, reduce, tensor, c.world - 1);
  expect_on_device(tensor, c.device, c.rank == c.world - 1 ? c.sum() : c.values(c.rank), "reduce " + c.text());
  // Lists of tensors on several devices, the CPU among them.
  tensor = c.mine();
  const torch::Tensor host = c.values(c.rank);
  const torch::Tensor elsewhere = c.values(c.rank).to(test_device((c.rank + 1) % kTestDevices));
  RUN(c, all_reduce_coalesced, {tensor, host, elsewhere});
  expect_on_device(tensor, c.device, c.sum(), "all_reduce_coalesced " + c.text());
  expect_on_device(host, torch::kCPU, c.sum(), "all_reduce_coalesced " + c.text());
  expect_on_device(elsewhere, elsewhere.device(), c.sum(), "all_reduce_coalesced " + c.text());
  // Rank r's slice for rank s is values(s), so the sum is world * values(rank).
  const torch::Tensor expected = (c.values(c.rank).to(torch::kLong) * c.world).to(c.dtype);
  tensor = c.zeros(c.size);
  std::vector<torch::Tensor> slices;
  for (const torch::Tensor& slice : c.of_all()) slices.push_back(c.on_device(slice));
  RUN(c, reduce_scatter, tensor, slices);
  expect_on_device(tensor, c.device, expected, "reduce_scatter " + c.text());
  tensor.zero_();
  RUN(c, reduce_scatter_tensor, tensor, c.on_device(torch::cat(c.of_all())));
  expect_on_device(tensor, c.device, expected, "reduce_scatter_tensor " + c.text());
}

void check_moves(const Case& c) {
  torch::Tensor tensor = c.mine();
  RUN(c, broadcast, tensor, c.world - 1);
  expect_on_device(tensor, c.device, c.values(c.world - 1), "broadcast " + c.text());
  std::vector<torch::Tensor> outputs;
  for (int who = 0; who < c.world; ++who) outputs.push_back(c.zeros(c.size + who));
  RUN(c, all_gather, outputs, c.on_device(c.values(c.rank, c.size + c.rank)));
  for (int who = 0; who < c.world; ++who) {
    expect_on_device(outputs[who], c.device, c.values(who, c.size + who), "all_gather " + c.text());
  }
  tensor = c.zeros(c.size * c.world);
  RUN(c, all_gather_into_tensor, tensor, c.mine());
  expect_on_device(tensor, c.device, torch::cat(c.of_all()), "all_gather_into_tensor " + c.text());
  // In place: the input is this rank's slice of the output.
  tensor.zero_();
  const torch::Tensor part = tensor.narrow(0, c.rank * c.size, c.size).copy_(c.values(c.rank));
  RUN(c, all_gather_into_tensor, tensor, part);
  expect_on_device(tensor, c.device, torch::cat(c.of_all()), "all_gather_into_tensor in place " + c.text());
  const bool is_root = c.rank == 0;
  std::vector<torch::Tensor> list;
  for (int who = 0; who < c.world && is_root; ++who) list.push_back(c.zeros(c.size));
  RUN(c, gather, c.mine(), list, 0);
  for (int who = 0; who < c.world && is_root; ++who) {
    expect_on_device(list[who], c.device, c.values(who), "gather " + c.text());
  }
  tensor = c.zeros(c.size);
  RUN(c, scatter, tensor, list, 0);
  expect_on_device(tensor, c.device, c.values(c.rank), "scatter " + c.text());
}

void check_exchanges(const Case& c) {
  std::vector<torch::Tensor> inputs;
  std::vector<torch::Tensor> outputs;
  std::vector<torch::Tensor> expected;
  for (int who = 0; who < c.world; ++who) {
    inputs.push_back(c.on_device(c.values(10 * c.rank + who)));
    outputs.push_back(c.zeros(c.size));
    expected.push_back(c.values(10 * who + c.rank));
  }
  RUN(c, all_to_all, outputs, inputs);
  for (int who = 0; who < c.world; ++who) expect_on_device(outputs[who], c.device, expected[who], c.text());
  const torch::Tensor output = c.zeros(c.size * c.world);
  RUN(c, all_to_all_single, output, c.on_device(torch::cat(inputs)));
  expect_on_device(output, c.device, torch::cat(expected), "all_to_all_single " + c.text());
  if (c.world == 1) return;
  const int previous = (c.rank + c.world - 1) % c.world;
  const torch::Tensor received = c.zeros(c.size);
  const Work sent = isend(c.mine(), (c.rank + 1) % c.world);
  if (c.async) {
    irecv(received, previous)->wait();
  } else {
    EXPECT_EQ(recv(received), previous);
  }
  sent->wait();
  expect_on_device(received, c.device, c.values(previous), "messages " + c.text());
}

class DeviceCollectivesMulti : public testing::TestWithParam<int> {};

TEST_P(DeviceCollectivesMulti, AgreeWithTheProcessor) {
  const int world = GetParam();
  run_on_devices(
      world,
      [world](int rank, torch::Device device) {
        for (const auto dtype : {torch::kFloat, torch::kLong, torch::kBFloat16}) {
          for (const std::int64_t size : {0, 3, 20'000}) {
            for (const Memory memory : {Memory::kWhole, Memory::kPart, Memory::kStrided}) {
              for (const bool async : {false, true}) {
                const Case c{dtype, size, memory, async, rank, world, device};
                check_reductions(c);
                check_moves(c);
                check_exchanges(c);
              }
            }
          }
        }
      },
      kStaged);
}
INSTANTIATE_TEST_SUITE_P(Worlds, DeviceCollectivesMulti, testing::Values(1, 2, 3, 5));

// The lazy streams of the test device make each missing wait a wrong result.
TEST(DeviceStagingMulti, FollowsTheWorkOfTheCurrentStream) {
  run_on_devices(
      2,
      [](int rank, torch::Device device) {
        const c10::impl::VirtualGuardImpl guard(device.type());
        const torch::Tensor host = torch::full({50}, rank + 1.0F).pin_memory();
        const torch::Tensor sum = torch::full({50}, 3.0F);
        for (const bool async : {false, true}) {
          const c10::StreamGuard side(guard.getStreamFromGlobalPool(device));
          const torch::Tensor input = host.to(device, /*non_blocking=*/true);
          if (async) {
            all_reduce_async(input)->wait();
          } else {
            all_reduce(input);
          }
          expect_on_device(input, device, sum, "an input that is still being copied");
          const torch::Tensor output = torch::zeros({50}, device);
          output.copy_(host, /*non_blocking=*/true);
          const Work work = broadcast_async(output, 0);
          {
            // The result may arrive in another thread, while another stream is current.
            const c10::StreamGuard other(guard.getStreamFromGlobalPool(device));
            work->getFuture()->wait();
            expect_on_device(output, device, torch::ones({50}), "an output that was still being written");
          }
          expect_on_device(output, device, torch::ones({50}), "an output that was still being written");
        }
      },
      kStaged);
}

TEST(DeviceFuturesMulti, GiveTensorsOfTheDevice) {
  run_on_devices(3, [](int rank, torch::Device device) {
    const torch::Tensor tensor = torch::full({7}, rank + 1, torch::TensorOptions(torch::kInt).device(device));
    const auto doubled = all_reduce_async(tensor)->getFuture()->then(
        [](c10::ivalue::Future& done) { return c10::IValue(done.value().toTensorVector().at(0) * 2); },
        c10::TensorType::get());
    doubled->wait();
    expect_on_device(doubled->value().toTensor(), device, torch::full({7}, 12, torch::kInt), "callback");
  });
}

TEST(DeviceBackendsMulti, ServeEachDeviceByName) {
  run_on_devices(
      2,
      [](int rank, torch::Device device) {
        EXPECT_EQ(get_backend(), "lockstep");
        all_reduce(torch::ones({2}));
        const torch::Tensor tensor = torch::full({2}, static_cast<float>(rank), device);
        all_reduce(tensor);
        expect_on_device(tensor, device, torch::full({2}, 1.0F), "mixed");
        std::string word = rank == 0 ? "said" : "";
        broadcast_object(word, 0);
        EXPECT_EQ(word, "said");
        const std::vector<int> ranks = all_gather_object(rank);
        EXPECT_EQ(ranks, (std::vector<int>{0, 1}));
        const auto pair = new_group({0, 1});
        all_reduce(tensor, {.group = pair});
        expect_on_device(tensor, device, torch::full({2}, 2.0F), "new_group");
      },
      "cpu:lockstep," + test_device_name() + ":lockstep");
}

TEST(DeviceBackendsMulti, ObjectsStayOnTheReceiversDevices) {
  run_on_devices(
      2,
      [](int rank, torch::Device device) {
        const torch::Device other = test_device(rank + 2);
        torch::nn::Linear one(2, 3), two(2, 3);
        one->to(device);
        two->to(device);
        two->bias.set_data(two->bias.detach().to(other));  // on two devices
        std::vector<torch::Tensor> parameters = one->parameters();
        for (const torch::Tensor& parameter : two->parameters()) parameters.push_back(parameter);
        torch::optim::SGD split(parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
        torch::optim::SGD single(one->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
        for (const torch::Tensor& parameter : parameters) {
          const torch::NoGradGuard no_grad;
          parameter.fill_(rank + 1);
          parameter.mutable_grad() = torch::full_like(parameter, rank + 5);
        }
        split.step();
        single.step();
        broadcast_object(one, 0);
        broadcast_object(two, 0);
        broadcast_object(single, 0);
        broadcast_object(split, 0);
        const auto expect_state = [](const torch::optim::SGD& optimizer, const torch::Tensor& parameter) {
          const auto& state =
              static_cast<const torch::optim::SGDParamState&>(*optimizer.state().at(parameter.unsafeGetTensorImpl()));
          expect_on_device(state.momentum_buffer(), parameter.device(), torch::full(parameter.sizes(), 5.0F), "state");
        };
        for (const torch::Tensor& parameter : parameters) expect_state(split, parameter);
        for (const torch::Tensor& parameter : one->parameters()) expect_state(single, parameter);
        EXPECT_EQ(one->weight.device(), device);
        EXPECT_EQ(two->weight.device(), device);
        EXPECT_EQ(two->bias.device(), other);
        const torch::Tensor bias = two->bias.detach().cpu();
        EXPECT_TRUE(bias.equal(torch::full({3}, 0.5F))) << bias;
      },
      "cpu:lockstep," + test_device_name() + ":lockstep");
}

TEST(DeviceBackendsMulti, OfTheDeviceAloneRefuseTensorsOfTheProcessor) {
  run_on_devices(
      2,
      [](int /*rank*/, torch::Device device) {
        barrier();
        const torch::Tensor tensor = torch::ones({2}, device);
        all_reduce(tensor);
        expect_on_device(tensor, device, torch::full({2}, 2.0F), "device alone");
        expect_in(error_of([] { all_reduce(torch::ones({2})); }),
                  {"no backend for tensors on cpu; it has lockstep for " + test_device_name()});
      },
      test_device_name() + ":lockstep");
}

#ifdef LOCKSTEP_HAS_MPI
TEST(DeviceBackendsMulti, ServeTheProcessorAndTheDeviceByTwoBackends) {
  run_under_mpirun(3, [](int rank) {
    use_test_device();
    const ProcessGroupGuard group("cpu:lockstep,test:mpi");
    EXPECT_EQ(get_backend(), "cpu:lockstep,test:mpi");
    const torch::Device device = test_device(rank);
    for (const bool async : {false, true}) {
      const Case c{torch::kFloat, 1000, Memory::kStrided, async, rank, 3, device};
      torch::Tensor tensor = c.mine();
      const torch::Tensor host = c.values(rank);
      RUN(c, all_reduce, tensor);
      RUN(c, all_reduce, host);
      expect_on_device(tensor, device, c.sum(), "mpi " + c.text());
      expect_on_device(host, torch::kCPU, c.sum(), "lockstep " + c.text());
      check_moves(c);
      check_exchanges(c);
    }
    EXPECT_EQ(all_gather_object(rank), (std::vector<int>{0, 1, 2}));
  });
}
#endif

}  // namespace
}  // namespace lockstep::test
