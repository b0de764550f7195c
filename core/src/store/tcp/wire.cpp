#include "store/tcp/wire.h"

#include <chrono>
#include <iterator>
#include <utility>

namespace lockstep::comm::wire {
namespace {

template <typename Integer>
void put(std::string& out, Integer value) {
  const auto bits = static_cast<std::make_unsigned_t<Integer>>(value);
  for (std::size_t i = 0; i < sizeof bits; ++i) out.push_back(static_cast<char>((bits >> (8 * i)) & 0xff));
}

template <typename Integer>
Integer take(std::string_view& in) {
  std::make_unsigned_t<Integer> bits = 0;
  for (std::size_t i = 0; i < sizeof bits; ++i) {
    bits |= static_cast<decltype(bits)>(static_cast<unsigned char>(in[i])) << (8 * i);
  }
  in.remove_prefix(sizeof bits);
  return static_cast<Integer>(bits);
}

constexpr std::size_t kFixedBytes = 1 + 8 + 4;

Status malformed() {
  return {ErrorCode::kCorrupt, "a malformed message arrived on a store connection"};
}

}  // namespace

std::size_t body_bytes(const std::vector<std::string>& parts) {
  std::size_t bytes = kFixedBytes;
  for (const auto& part : parts) bytes += 4 + part.size();
  return bytes;
}

std::string encode(const Message& message) {
  const std::size_t length = body_bytes(message.parts);
  std::string out;
  out.reserve(kLengthBytes + length);
  put(out, static_cast<std::uint32_t>(length));
  put(out, message.kind);
  put(out, message.number);
  put(out, static_cast<std::uint32_t>(message.parts.size()));
  for (const auto& part : message.parts) {
    put(out, static_cast<std::uint32_t>(part.size()));
    out.append(part);
  }
  return out;
}

std::size_t frame_length(std::string_view bytes) {
  return take<std::uint32_t>(bytes);
}

Result<Message> decode(std::string_view body) {
  if (body.size() < kFixedBytes) return malformed();
  Message message;
  message.kind = take<std::uint8_t>(body);
  message.number = take<std::int64_t>(body);
  const std::size_t count = take<std::uint32_t>(body);
  if (count > body.size() / 4) return malformed();
  message.parts.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (body.size() < 4) return malformed();
    const std::size_t bytes = take<std::uint32_t>(body);
    if (bytes > body.size()) return malformed();
    message.parts.emplace_back(body.substr(0, bytes));
    body.remove_prefix(bytes);
  }
  if (!body.empty()) return malformed();
  return message;
}

std::int64_t wait_until(Deadline deadline) {
  return deadline.is_never() ? kWaitForever : deadline.remaining_ms().count();
}

Message request_of(StoreCall call) {
  const std::int64_t number = call.waits() ? wait_until(call.deadline) : call.amount;
  Message request{static_cast<std::uint8_t>(call.op), number, std::move(call.keys)};
  if (call.waits() && !call.unless.empty()) {
    request.kind |= kUnless;
    request.parts.insert(request.parts.begin(), std::move(call.unless));
  }
  std::move(call.values.begin(), call.values.end(), std::back_inserter(request.parts));
  return request;
}

std::optional<StoreCall> call_of(Message request) {
  StoreCall call{.op = static_cast<Op>(request.kind & ~kUnless)};
  if ((request.kind & kUnless) != 0) {
    if (!call.waits() || request.parts.empty()) return std::nullopt;
    call.unless = std::move(request.parts.front());
    request.parts.erase(request.parts.begin());
  }
  call.keys = std::move(request.parts);
  const std::size_t parts = call.keys.size();
  std::size_t values = 0;
  bool fits = false;
  switch (call.op) {
    case Op::kSet: values = parts / 2, fits = parts % 2 == 0; break;
    case Op::kGet:
    case Op::kWait:
    case Op::kCheck: fits = true; break;
    case Op::kAdd:
    case Op::kDelete: fits = parts == 1; break;
    case Op::kCompareSet: values = 2, fits = parts == 3; break;
    case Op::kAppend: values = 1, fits = parts == 2; break;
    case Op::kNumKeys: fits = parts == 0; break;
  }
  if (!fits) return std::nullopt;
  std::move(call.keys.end() - static_cast<std::ptrdiff_t>(values), call.keys.end(), std::back_inserter(call.values));
  call.keys.resize(parts - values);
  if (call.waits()) {
    // Above a year counts as never, as in Deadline itself; this also keeps the conversion from overflowing.
    constexpr std::int64_t kYear = std::int64_t{1000} * 3600 * 24 * 365;
    if (request.number <= kYear) call.deadline = Deadline::after(std::chrono::milliseconds(request.number));
  } else {
    call.amount = request.number;
  }
  return call;
}

Message answer_of(Result<StoreAnswer> answer) {
  if (!answer.ok()) return failure(answer.status());
  return {static_cast<std::uint8_t>(ErrorCode::kOk), answer->number, std::move(answer->values)};
}

Message failure(const Status& status) {
  return {static_cast<std::uint8_t>(status.code()), 0, {status.message()}};
}

Status status_of(const Message& answer) {
  if (answer.kind == static_cast<std::uint8_t>(ErrorCode::kOk)) return {};
  const bool known = answer.kind <= static_cast<std::uint8_t>(ErrorCode::kInternal) && answer.parts.size() == 1;
  return known ? Status(static_cast<ErrorCode>(answer.kind), answer.parts[0]) : malformed();
}

}  // namespace lockstep::comm::wire
