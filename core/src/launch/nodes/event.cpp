#include "launch/nodes/event.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/printable.h"

namespace lockstep::launch {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(NodeInfo, node_rank, workers, host, pid, address, serves,
                                                store_outlives_job, role, version, command, same_command, min_nodes,
                                                max_nodes, max_restarts, grace_ms, silence_ms, join_timeout_ms,
                                                last_call_ms, problem, problem_code)

namespace {

using nlohmann::json;

// Another launcher's text is shown on this node's terminal. Of its control characters only ends of lines and tabs stay.
void clean(std::string& text) {
  std::string result;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find_first_of("\n\t", begin), text.size());
    result += printable(std::string_view(text).substr(begin, end - begin));
    if (end < text.size()) result += text[end];
    begin = end + 1;
  }
  text = std::move(result);
}

bool is_between(std::int64_t value, std::int64_t least, std::int64_t most) {
  return value >= least && value <= most;
}

constexpr int kMostWorkers = 1'000'000;                  // of all nodes together this still fits into an int
constexpr std::int64_t kMostMs = 1'000'000'000'000'000;  // leaves room for sums
constexpr int kHighestSignal = 64;

bool is_sound(const NodeInfo& info) {
  bool times = true;
  for (const long ms : {info.grace_ms, info.silence_ms, info.join_timeout_ms, info.last_call_ms})
    times = times && is_between(ms, -kMostMs, kMostMs);
  return times && info.node_rank >= -1 && is_between(info.workers, 1, kMostWorkers) && info.pid >= 0 &&
         info.min_nodes >= 1 && info.max_nodes >= info.min_nodes && info.max_restarts >= 0;
}

bool is_sound(const Failure& failure) {
  return failure.rank >= 0 && failure.local_rank >= 0 && failure.node_rank >= -1 && failure.attempt >= 0 &&
         failure.max_restarts >= 0 && is_between(failure.exit.signal, 0, kHighestSignal);
}

bool is_sound(const Event& event) {
  const bool is_signal = event.kind == EventKind::kLeave || event.kind == EventKind::kSignal;
  return is_between(static_cast<int>(event.kind), static_cast<int>(EventKind::kJoin),
                    static_cast<int>(EventKind::kSignal)) &&
         !event.node.empty() && event.number >= 0 && (!is_signal || event.number <= kHighestSignal) &&
         is_between(event.master_port, 0, 65535) && is_sound(event.info) && is_sound(event.failure);
}

void clean(Event& event) {
  for (std::string* text :
       {&event.node, &event.info.id, &event.info.host, &event.info.address, &event.info.role, &event.info.version,
        &event.info.command, &event.info.problem, &event.master_addr, &event.store, &event.text, &event.failure.host,
        &event.failure.command, &event.failure.error, &event.failure.call_stack})
    clean(*text);
  for (std::string& line : event.failure.stderr_tail) clean(line);
}

json to_json(const Failure& failure) {
  return {{"rank", failure.rank},
          {"local_rank", failure.local_rank},
          {"node_rank", failure.node_rank},
          {"host", failure.host},
          {"command", failure.command},
          {"attempt", failure.attempt},
          {"max_restarts", failure.max_restarts},
          {"pid", failure.exit.pid},
          {"code", failure.exit.code},
          {"signal", failure.exit.signal},
          {"core_dumped", failure.exit.core_dumped},
          {"run_time_ns", failure.exit.run_time.count()},
          {"error", failure.error},
          {"call_stack", failure.call_stack},
          {"stderr_seen", failure.stderr_seen},
          {"stderr", failure.stderr_tail}};
}

Failure failure_of(const json& object) {
  Failure failure;
  failure.rank = object.value("rank", 0);
  failure.local_rank = object.value("local_rank", 0);
  failure.node_rank = object.value("node_rank", -1);
  failure.host = object.value("host", "");
  failure.command = object.value("command", "");
  failure.attempt = object.value("attempt", 0);
  failure.max_restarts = object.value("max_restarts", 0);
  failure.exit.index = failure.local_rank;
  failure.exit.pid = object.value("pid", 0);
  failure.exit.code = object.value("code", 0);
  failure.exit.signal = object.value("signal", 0);
  failure.exit.core_dumped = object.value("core_dumped", false);
  failure.exit.run_time = std::chrono::nanoseconds(object.value("run_time_ns", std::int64_t{0}));
  failure.error = object.value("error", "");
  failure.call_stack = object.value("call_stack", "");
  failure.stderr_seen = object.value("stderr_seen", true);
  failure.stderr_tail = object.value("stderr", std::vector<std::string>());
  return failure;
}

Event event_of(const json& object) {
  Event event;
  event.kind = static_cast<EventKind>(object.at("kind").get<int>());
  event.node = object.at("node").get<std::string>();
  event.number = object.value("number", 0);
  event.master_addr = object.value("master_addr", "");
  event.master_port = object.value("master_port", 0);
  event.store = object.value("store", "");
  event.text = object.value("text", "");
  event.code = object.value("code", 0);
  if (event.kind == EventKind::kJoin) {
    event.info = object.at("info");
    event.info.id = event.node;
  }
  if (event.kind == EventKind::kFailed) event.failure = failure_of(object.at("failure"));
  return event;
}

}  // namespace

std::string NodeInfo::text() const {
  const std::string who = fmt::format("(host {}, pid {})", host, pid);
  return node_rank < 0 ? "node " + who : fmt::format("node {} {}", node_rank, who);
}

std::string encode(const Event& event) {
  json object{{"kind", static_cast<int>(event.kind)}, {"node", event.node}, {"number", event.number}};
  if (event.kind == EventKind::kJoin) object["info"] = event.info;
  if (event.kind == EventKind::kFailed) object["failure"] = to_json(event.failure);
  if (event.kind == EventKind::kServices) {
    object["master_addr"] = event.master_addr;
    object["master_port"] = event.master_port;
    object["store"] = event.store;
  }
  if (!event.text.empty()) object["text"] = event.text;
  if (event.code != 0) object["code"] = event.code;
  // Output of programs may be any bytes.
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

Result<Event> decode_event(std::string_view text) {
  const Status wrong(ErrorCode::kCorrupt, "an event of the rendezvous cannot be read");
  const json object = json::parse(text, nullptr, false);
  if (!object.is_object()) return wrong;
  try {
    Event event = event_of(object);
    if (!is_sound(event)) return wrong;
    clean(event);
    return event;
  } catch (const json::exception&) {
    return wrong;  // a value of another type than expected
  }
}

}  // namespace lockstep::launch
