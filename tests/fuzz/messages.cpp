// What arrives at the ports and sockets of a group: UCX active messages, and rank 0's published address.
#include "engine/hierarchical/control_messages.h"
#include "fuzz/fuzz.h"
#include "shm/hand_over_protocol.h"

namespace lockstep::fuzz {
namespace {

const std::string kToken(16, 't');

}  // namespace

void take(std::string_view bytes) {
  if (bytes.empty()) return;
  const std::string_view input = bytes.substr(1);
  switch (bytes[0]) {
    case 0: {
      const auto header = comm::unpack_header(input, kToken, 8);
      if (header) require(header->source >= 0 && header->source < 8);
      return;
    }
    case 1: require(comm::unpack_news(input, 8).size() <= 8); return;
    case 2: (void)comm::read_address(std::string(input)); return;
  }
}

std::vector<std::string> seeds() {
  using Type = comm::ActiveMessageHeader::Type;
  std::vector<std::string> all;
  for (const Type type : {Type::kMessage, Type::kHello, Type::kNews, Type::kAbort}) {
    all.push_back(for_parser(0, comm::pack_header({.type = type, .source = 3, .tag = 9}, kToken)));
  }
  all.push_back(for_parser(1, comm::pack_news({{.call = 7}, {.call = 8, .condition = "stopped by a signal"}})));
  if (const auto address = comm::make_address(); address.ok()) {
    const auto* bytes = reinterpret_cast<const char*>(&address.value());
    all.push_back(for_parser(2, {bytes, sizeof(address.value())}));
  }
  return all;
}

}  // namespace lockstep::fuzz
