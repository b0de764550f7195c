#include "engine/calls.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>

#include "engine/hierarchical/call.h"
#include "lockstep/reduce/reduce.h"

namespace lockstep::test {

using namespace comm;

namespace {

constexpr std::size_t kCanary = 16;
constexpr auto kPatience = std::chrono::seconds(40);

std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

// Bits of an element that is an ordinary number: for floats the exponent of 1, so that no operation overflows.
std::uint64_t element_bits(DataType type, std::uint64_t bits) {
  switch (type) {
    case DataType::kBool: return bits & 1;
    case DataType::kFloat16: return 0x3c00 | (bits & 0x3ff);
    case DataType::kBFloat16: return 0x3f80 | (bits & 0x7f);
    case DataType::kFloat32: return 0x3f800000 | (bits & 0x7fffff);
    case DataType::kComplex32: return 0x3c003c00 | (bits & 0x03ff03ff);
    case DataType::kComplex64: return 0x3f8000003f800000 | (bits & 0x007fffff007fffff);
    case DataType::kFloat64:
    case DataType::kComplex128: return 0x3ff0000000000000 | (bits & 0xfffffffffffff);
    default: return bits;
  }
}

bool is_list_input(Kind kind) {
  return kind == Kind::kScatter || kind == Kind::kReduceScatter || kind == Kind::kAllToAll;
}
bool is_list_output(Kind kind) {
  return kind == Kind::kAllGather || kind == Kind::kGather || kind == Kind::kAllToAll;
}
bool is_reduction(Kind kind) {
  return kind == Kind::kAllReduce || kind == Kind::kReduce || kind == Kind::kReduceScatter;
}

}  // namespace

Buffer::Buffer(SharedArena& arena, Place place, std::size_t bytes)
    : arena_(place == Place::kArena ? &arena : nullptr), bytes_(bytes) {
  if (arena_ != nullptr) {
    data_ = arena_->allocate(bytes + kCanary).value();
  } else {
    heap_.resize(bytes + kCanary);
    data_ = heap_.data();
  }
  std::memset(data_, 0xa5, bytes + kCanary);
}

Buffer::~Buffer() {
  if (arena_ != nullptr) arena_->deallocate(data_);
}

bool Buffer::intact() const {
  return std::all_of(data_ + bytes_, data_ + bytes_ + kCanary, [](std::byte b) { return b == std::byte{0xa5}; });
}

Spec random_spec(std::mt19937_64& random, int world, std::size_t max_count) {
  constexpr DataType kTypes[] = {DataType::kFloat32,  DataType::kFloat32, DataType::kFloat32, DataType::kInt32,
                                 DataType::kBFloat16, DataType::kFloat64, DataType::kUInt8,   DataType::kComplex128};
  Spec spec;
  spec.kind = static_cast<Kind>(static_cast<int>(Kind::kAllReduce) + random() % 9);
  spec.type = kTypes[random() % std::size(kTypes)];
  spec.op = random() % 3 == 0 ? ReduceOp::kAvg : ReduceOp::kSum;
  spec.root = static_cast<int>(random() % world);
  switch (random() % 6) {
    case 0: spec.count = random() % 3; break;
    case 1: spec.count = random() % 64; break;
    case 2: spec.count = Communicator::kInlineBytes / size_of(spec.type) + random() % 3 - 1; break;
    case 3: spec.count = random() % max_count; break;
    default: spec.count = random() % (max_count / 8); break;
  }
  spec.even = random() % 2 == 0;
  spec.seed = random();
  return spec;
}

Style random_style(std::mt19937_64& random) {
  Style style;
  style.input = random() % 2 == 0 ? Place::kArena : Place::kPrivate;
  style.output = random() % 4 != 0 ? style.input : random() % 2 == 0 ? Place::kArena : Place::kPrivate;
  style.in_place = random() % 2 == 0;
  style.blocking = random() % 2 == 0;
  return style;
}

std::vector<std::byte> contribution(const Spec& spec, int from, int to, std::size_t count) {
  const std::size_t word = std::min<std::size_t>(8, size_of(spec.type));
  std::vector<std::byte> bytes(count * size_of(spec.type));
  std::uint64_t state = mix(spec.seed + std::uint64_t{1000} * from + to);
  // Each copy has a fixed size, so that compilers make one instruction of it. The next element overwrites the excess.
  bytes.resize(bytes.size() + sizeof(state));
  for (std::size_t i = 0; i + sizeof(state) < bytes.size(); i += word) {
    state += 0x9e3779b97f4a7c15;
    const std::uint64_t bits = element_bits(spec.type, mix(state));
    std::memcpy(bytes.data() + i, &bits, sizeof(bits));
  }
  bytes.resize(bytes.size() - sizeof(state));
  return bytes;
}

Call::Call(Communicator& group, const Spec& spec, const Style& style) : group_(group), spec_(spec), style_(style) {
  plan_inputs();
  plan_outputs();
  make_buffers();
}

// Elements that pass from one rank to another; for all_gather and gather the same to everyone, and so on.
std::size_t Call::count(int from, int to) const {
  if (spec_.even) return spec_.count;
  const bool by_sender = spec_.kind == Kind::kAllGather || spec_.kind == Kind::kGather;
  const bool by_receiver = spec_.kind == Kind::kScatter || spec_.kind == Kind::kReduceScatter;
  if (!by_sender && !by_receiver && spec_.kind != Kind::kAllToAll) return spec_.count;
  const std::uint64_t key = (by_receiver ? 0 : 100 * (from + 1)) + (by_sender ? 0 : to + 1);
  const std::uint64_t bits = mix(spec_.seed ^ key);
  return bits % 4 == 0 ? 0 : bits / 4 % (2 * spec_.count + 1);
}

std::vector<std::byte> Call::sent(int from, int to) const {
  return contribution(spec_, from, is_list_input(spec_.kind) ? to : 0, count(from, to));
}

std::vector<std::byte> Call::reduced(int to) const {
  const auto combine = [&](const std::vector<std::vector<std::byte>>& all, comm::ReduceOp op, std::size_t divisor) {
    std::vector<const std::byte*> inputs;
    inputs.reserve(all.size());
    for (const auto& input : all) inputs.push_back(input.data());
    std::vector<std::byte> result(all[0].size());
    std::byte* const output = result.data();
    reduce({spec_.type, op, 0.5, divisor}, inputs, std::span(&output, 1), count(0, to));
    return result;
  };
  std::vector<std::vector<std::byte>> all;
  all.reserve(group_.group_size());
  for (int from = 0; from < group_.group_size(); ++from) all.push_back(sent(from, to));
  // Data that fits into the records of the meeting is summed by each rank itself, in rank order.
  const bool carried = spec_.kind != Kind::kReduceScatter && all[0].size() <= comm::Call::kPayloadBytes;
  // Means of integers that their 64 bits hold are exact wherever they are taken.
  const bool exact = spec_.op == comm::ReduceOp::kAvg && comm::is_supported(spec_.type, comm::ReduceOp::kBand);
  if (spec_.machine_of.empty() || carried || exact) return combine(all, spec_.op, 0);
  std::vector<std::vector<std::byte>> sums;
  for (int machine = 0; machine <= *std::max_element(spec_.machine_of.begin(), spec_.machine_of.end()); ++machine) {
    std::vector<std::vector<std::byte>> members;
    for (int from = 0; from < group_.group_size(); ++from) {
      if (spec_.machine_of[from] == machine) members.push_back(all[from]);
    }
    sums.push_back(combine(members, spec_.op == comm::ReduceOp::kAvg ? comm::ReduceOp::kSum : spec_.op, 0));
  }
  return combine(sums, spec_.op == comm::ReduceOp::kPremulSum ? comm::ReduceOp::kSum : spec_.op, all.size());
}

void Call::plan_inputs() {
  const int me = group_.rank();
  if (spec_.kind == Kind::kBarrier) return;
  if (is_list_input(spec_.kind)) {
    if (spec_.kind == Kind::kScatter && me != spec_.root) return;
    for (int to = 0; to < group_.group_size(); ++to) inputs_.push_back({0, sent(me, to)});
  } else if (spec_.kind != Kind::kBroadcast || me == spec_.root) {
    inputs_.push_back({0, sent(me, 0)});
  }
}

void Call::plan_outputs() {
  const int me = group_.rank();
  const bool root = me == spec_.root;
  if (spec_.kind == Kind::kBarrier || (spec_.kind == Kind::kGather && !root)) return;
  if (is_list_output(spec_.kind)) {
    for (int from = 0; from < group_.group_size(); ++from) outputs_.push_back({0, sent(from, me)});
  } else if (spec_.kind == Kind::kReduce && !root) {
    output_used_ = false;
    outputs_.push_back({0, std::vector<std::byte>(inputs_[0].bytes.size(), std::byte{0xa5})});
  } else if (is_reduction(spec_.kind)) {
    outputs_.push_back({0, reduced(me)});
  } else if (spec_.kind == Kind::kScatter || spec_.kind == Kind::kBroadcast) {
    outputs_.push_back({0, sent(spec_.root, me)});
  }
}

void Call::make_buffers() {
  const auto lay_out = [](std::vector<Part>& parts) {
    std::size_t offset = 0;
    for (Part& part : parts) offset = (part.offset = offset) + part.bytes.size();
    return offset;
  };
  const std::size_t input_bytes = lay_out(inputs_);
  const std::size_t output_bytes = lay_out(outputs_);
  if (spec_.kind == Kind::kBroadcast) {
    style_.in_place = true;
  } else if (spec_.kind == Kind::kAllToAll || !output_used_ || inputs_.empty() || outputs_.empty()) {
    style_.in_place = false;
  }
  const std::size_t me = group_.rank();
  if (style_.in_place && inputs_.size() < outputs_.size()) {  // a list is gathered around the input
    if (!inputs_.empty()) inputs_[0].offset = outputs_[me].offset;
  } else if (style_.in_place && outputs_.size() < inputs_.size()) {  // the output lies within the list
    if (!outputs_.empty()) outputs_[0].offset = inputs_[me].offset;
  }
  const std::size_t bytes = style_.in_place ? std::max(input_bytes, output_bytes) : input_bytes;
  input_ = std::make_unique<Buffer>(group_.arena(), style_.input, bytes);
  if (!style_.in_place) output_ = std::make_unique<Buffer>(group_.arena(), style_.output, output_bytes);
  for (const Part& part : inputs_) {
    if (!part.bytes.empty()) std::memcpy(input_->data() + part.offset, part.bytes.data(), part.bytes.size());
  }
}

std::vector<ConstPiece> Call::input_pieces() const {
  std::vector<ConstPiece> pieces;
  for (const Part& part : inputs_) pieces.push_back({input_->data() + part.offset, part.bytes.size()});
  return pieces;
}

std::vector<Piece> Call::output_pieces() const {
  const Buffer& buffer = output_ ? *output_ : *input_;
  std::vector<Piece> pieces;
  for (const Part& part : outputs_) pieces.push_back({buffer.data() + part.offset, part.bytes.size()});
  return pieces;
}

template <typename Use>
auto Call::with_args(Use use) const {
  const std::vector<ConstPiece> inputs = input_pieces();
  const std::vector<Piece> outputs = output_pieces();
  const ConstPiece input = inputs.empty() ? ConstPiece{} : inputs[0];
  const Piece output = outputs.empty() ? Piece{} : outputs[0];
  switch (spec_.kind) {
    case Kind::kAllReduce: return use(AllReduce{input.data, output.data, spec_.count, spec_.type, spec_.op, 0.5});
    case Kind::kReduce: return use(Reduce{input.data, output.data, spec_.count, spec_.type, spec_.op, 0.5, spec_.root});
    case Kind::kBroadcast:
      return use(Broadcast{input_->data(), spec_.count * size_of(spec_.type), spec_.root, spec_.type});
    case Kind::kAllGather: return use(AllGather{input, outputs});
    case Kind::kGather: return use(Gather{input, outputs, spec_.root});
    case Kind::kScatter: return use(Scatter{inputs, output, spec_.root});
    case Kind::kReduceScatter: return use(ReduceScatter{inputs, output, spec_.type, spec_.op, 0.5});
    case Kind::kAllToAll: return use(AllToAll{inputs, outputs});
    default: return use(Barrier{});
  }
}

Status Call::run(Deadline deadline) {
  return with_args([&](const auto& args) { return group_.run(args, deadline); });
}

Result<Operation> Call::start(Communicator::KeepAlive keep_alive) {
  return with_args([&](const auto& args) { return group_.start(args, keep_alive); });
}

std::vector<std::span<std::byte>> Call::memory() const {
  std::vector<std::span<std::byte>> parts{{input_->data(), input_->bytes()}};
  if (output_ != nullptr) parts.emplace_back(output_->data(), output_->bytes());
  return parts;
}

void Call::check() const {
  const auto what = [&] {
    return std::string(to_string(spec_.kind)) + " of " + std::to_string(spec_.count) + " " +
           std::string(to_string(spec_.type)) + " on rank " + std::to_string(group_.rank()) +
           (style_.input == Place::kArena ? ", arena" : ", private") +
           (style_.output == Place::kArena ? "/arena" : "/private") + (style_.in_place ? ", in place" : "") +
           (style_.blocking ? ", blocking" : ", async");
  };
  const Buffer& buffer = output_ ? *output_ : *input_;
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    const Part& part = outputs_[i];
    if (part.bytes.empty()) continue;
    ASSERT_EQ(std::memcmp(buffer.data() + part.offset, part.bytes.data(), part.bytes.size()), 0)
        << what() << ": output " << i << " differs";
  }
  if (output_) {
    for (const Part& part : inputs_) {
      if (part.bytes.empty()) continue;
      ASSERT_EQ(std::memcmp(input_->data() + part.offset, part.bytes.data(), part.bytes.size()), 0)
          << what() << ": the input was changed";
    }
  }
  ASSERT_TRUE(input_->intact() && (!output_ || output_->intact())) << what() << ": memory behind a buffer was written";
}

namespace {

// Started operations of one rank: waited for in any order, or only dropped.
class UnderWay {
 public:
  explicit UnderWay(std::mt19937_64& random) : random_(random) {}

  void add(std::shared_ptr<Call> call, const Operation& operation) { items_.push_back({std::move(call), operation}); }
  std::size_t size() const { return items_.size(); }
  void finish_one() {
    const auto item = items_.begin() + random_() % items_.size();
    if (random_() % 3 == 0) (void)item->second.is_completed();
    const Status status = item->second.wait(Deadline::after(kPatience));
    ASSERT_TRUE(status.ok()) << status.message();
    item->first->check();
    items_.erase(item);
  }

 private:
  std::mt19937_64& random_;
  std::deque<std::pair<std::shared_ptr<Call>, Operation>> items_;
};

// Every rank sends to every other and receives from any, in its own order.
void exchange_messages(Communicator& group, std::mt19937_64& own, std::uint64_t seed, std::size_t bytes) {
  const int world = group.group_size();
  Spec spec;
  spec.type = DataType::kUInt8;
  spec.seed = seed;
  std::vector<std::unique_ptr<Buffer>> sent;
  std::vector<std::unique_ptr<Buffer>> got;
  std::vector<Operation> operations;
  std::vector<int> order(std::size_t{2} * world);
  for (int i = 0; i < 2 * world; ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), own);
  for (int i = 0; i < world; ++i) {
    const auto data = contribution(spec, group.rank(), i, bytes);
    sent.push_back(std::make_unique<Buffer>(group.arena(), random_style(own).input, bytes));
    if (bytes > 0) std::memcpy(sent[i]->data(), data.data(), bytes);
    got.push_back(std::make_unique<Buffer>(group.arena(), random_style(own).input, bytes));
  }
  for (const int i : order) {
    const int peer = i % world;
    auto started = i < world ? group.start(Send{{sent[peer]->data(), bytes}, peer, 5})
                             : group.start(Receive{{got[peer]->data(), bytes}, peer, 5});
    ASSERT_TRUE(started.ok()) << started.status().message();
    operations.push_back(*started);
  }
  for (Operation& operation : operations) {
    const Status status = operation.wait(Deadline::after(kPatience));
    ASSERT_TRUE(status.ok()) << status.message();
  }
  for (int from = 0; from < world; ++from) {
    const auto expected = contribution(spec, from, group.rank(), bytes);
    ASSERT_TRUE(bytes == 0 || std::memcmp(got[from]->data(), expected.data(), bytes) == 0) << "from " << from;
  }
}

}  // namespace

void run_random_sequence(Communicator& group, std::uint64_t seed, int steps, std::size_t max_count,
                         const std::vector<int>& machine_of) {
  std::mt19937_64 common(seed);
  std::mt19937_64 own(mix(seed + std::uint64_t{77} * (group.rank() + 1)));
  UnderWay under_way(own);
  for (int step = 0; step < steps && !testing::Test::HasFatalFailure(); ++step) {
    if (common() % 10 == 0) {
      const std::uint64_t message_seed = common();
      ASSERT_NO_FATAL_FAILURE(exchange_messages(group, own, message_seed, message_seed % (max_count / 4)));
      continue;
    }
    Spec spec = random_spec(common, group.group_size(), max_count);
    spec.machine_of = machine_of;
    const Style style = random_style(own);
    auto call = std::make_shared<Call>(group, spec, style);
    if (style.blocking) {
      const Status status = call->run(Deadline::after(kPatience));
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_NO_FATAL_FAILURE(call->check());
    } else {
      auto operation = call->start(call);
      ASSERT_TRUE(operation.ok()) << operation.status().message();
      if (own() % 8 != 0) under_way.add(std::move(call), *operation);
    }
    while (under_way.size() > own() % 40) ASSERT_NO_FATAL_FAILURE(under_way.finish_one());
    if (own() % 16 == 0) group.progress();
  }
  while (under_way.size() > 0) ASSERT_NO_FATAL_FAILURE(under_way.finish_one());
  const Status status = group.run(Barrier{}, Deadline::after(kPatience));
  ASSERT_TRUE(status.ok()) << status.message();
}

}  // namespace lockstep::test
