#include "lockstep/c10d/objects.h"

#include <fmt/format.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <algorithm>

#include "c10d/backend/group_errors.h"
#include "c10d/world/engine_of.h"
#include "c10d/world/target.h"

namespace lockstep {
namespace {

// The engine only reads from it.
at::Tensor as_tensor(const std::string& bytes) {
  return at::from_blob(const_cast<char*>(bytes.data()), {static_cast<std::int64_t>(bytes.size())}, at::kByte);
}

std::vector<at::Tensor> as_tensors(std::vector<std::string>& list) {
  std::vector<at::Tensor> tensors;
  tensors.reserve(list.size());
  for (const std::string& bytes : list) tensors.push_back(as_tensor(bytes));
  return tensors;
}

// The number of bytes of every rank.
std::vector<std::int64_t> gather_sizes(std::size_t mine, const CollectiveOptions& options) {
  const at::Tensor size = at::tensor({static_cast<std::int64_t>(mine)}, at::kLong);
  const at::Tensor sizes = at::empty({get_world_size(options.group)}, at::kLong);
  all_gather_into_tensor(sizes, size, options);
  const auto* data = sizes.const_data_ptr<std::int64_t>();
  return {data, data + sizes.numel()};
}

std::vector<std::string> make_room(const std::vector<std::int64_t>& sizes) {
  std::vector<std::string> list;
  list.reserve(sizes.size());
  for (const std::int64_t size : sizes) list.emplace_back(static_cast<std::size_t>(size), '\0');
  return list;
}

}  // namespace

void ObjectCodec<c10::IValue>::encode(const c10::IValue& value, ObjectWriter& writer) {
  const std::vector<char> bytes = torch::pickle_save(value);
  writer.put<std::uint64_t>(bytes.size());
  writer.put_raw(bytes.data(), bytes.size());
}

c10::IValue ObjectCodec<c10::IValue>::decode(ObjectReader& reader) {
  const auto size = reader.get<std::uint64_t>();
  const std::string_view bytes = reader.get_raw(size);
  return torch::pickle_load(std::vector<char>(bytes.begin(), bytes.end()));
}

// Values travel in CPU tensors. So the other ranks wait in the CPU's backend, whatever other backends the group has.
void refuse_object(const std::exception& why, const CollectiveOptions& options, CallSite site) {
  const CallScope scope(site);
  if (tell_other_ranks(options.group, why)) return;
  const ProcessGroup group = options.group != nullptr ? options.group : default_group();
  const std::vector<c10::Device> devices = group->getDeviceTypes();
  if (std::none_of(devices.begin(), devices.end(), [](const auto& device) { return device.is_cpu(); })) return;
  if (auto* const engine = engine_of(group, c10::DeviceType::CPU)) engine->refuse(plain_text(why));
}

std::string broadcast_bytes(const std::string& bytes, int src, const CollectiveOptions& options, CallSite site) {
  const CallScope scope(site);
  const at::Tensor size = at::tensor({static_cast<std::int64_t>(bytes.size())}, at::kLong);
  broadcast(size, src, options);
  if (get_rank() == src) {
    broadcast(as_tensor(bytes), src, options);
    return bytes;
  }
  std::string received(static_cast<std::size_t>(size.item<std::int64_t>()), '\0');
  broadcast(as_tensor(received), src, options);
  return received;
}

std::vector<std::string> all_gather_bytes(const std::string& bytes, const CollectiveOptions& options, CallSite site) {
  const CallScope scope(site);
  std::vector<std::string> list = make_room(gather_sizes(bytes.size(), options));
  all_gather(as_tensors(list), as_tensor(bytes), options);
  return list;
}

std::vector<std::string> gather_bytes(const std::string& bytes, int dst, const CollectiveOptions& options,
                                      CallSite site) {
  const CallScope scope(site);
  const std::vector<std::int64_t> sizes = gather_sizes(bytes.size(), options);
  std::vector<std::string> list = get_rank() == dst ? make_room(sizes) : std::vector<std::string>();
  gather(as_tensor(bytes), as_tensors(list), dst, options);
  return list;
}

std::string scatter_bytes(std::span<const std::string> bytes, int src, const CollectiveOptions& options,
                          CallSite site) {
  const CallScope scope(site);
  const auto group_size = static_cast<std::size_t>(get_world_size(options.group));
  const bool is_source = get_rank() == src;
  if (bytes.size() != (is_source ? group_size : 0)) {
    const ArgumentError error(
        ErrorCode::kInvalidArgument,
        fmt::format("scatter_object: rank {} must give {} values, found {}", get_rank(),
                    is_source ? fmt::format("{} (one per rank of the group)", group_size) : "no", bytes.size()));
    refuse_object(error, options);
    throw error;
  }
  std::vector<std::string> list(bytes.begin(), bytes.end());
  std::vector<at::Tensor> sizes;
  sizes.reserve(list.size());
  for (const std::string& entry : list) {
    sizes.push_back(at::tensor({static_cast<std::int64_t>(entry.size())}, at::kLong));
  }
  const at::Tensor size = at::empty({1}, at::kLong);
  scatter(size, sizes, src, options);
  std::string received(static_cast<std::size_t>(size.item<std::int64_t>()), '\0');
  scatter(as_tensor(received), as_tensors(list), src, options);
  return received;
}

void send_bytes(const std::string& bytes, int dst, const PointToPointOptions& options, CallSite site) {
  const CallScope scope(site);
  send(at::tensor({static_cast<std::int64_t>(bytes.size())}, at::kLong), dst, options);
  send(as_tensor(bytes), dst, options);
}

int recv_bytes(std::string& bytes, int src, const PointToPointOptions& options, CallSite site) {
  const CallScope scope(site);
  const at::Tensor size = at::empty({1}, at::kLong);
  const int sender = recv(size, src, options);
  const auto count = size.item<std::int64_t>();
  if (count < 0) {
    throw ArgumentError(ErrorCode::kInvalidArgument,
                        fmt::format("recv_object: the message from rank {} with tag {} is no object: send it with "
                                    "send_object",
                                    sender, options.tag));
  }
  bytes.assign(static_cast<std::size_t>(count), '\0');
  // From this sender, not from whoever is next: messages of one sender keep their order.
  recv(as_tensor(bytes), sender, options);
  return sender;
}

}  // namespace lockstep
