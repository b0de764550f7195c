// What processes and launchers of a job tell one another through a store, and what users write about hosts.
#include "fuzz/fuzz.h"
#include "launch/nodes/event.h"
#include "launch/nodes/hosts_job.h"
#include "launch/output/stream_choice.h"
#include "lockstep/store/endpoint.h"
#include "site/devices.h"
#include "store/membership/reconfigure_handle.h"

namespace lockstep::fuzz {
namespace {

void take_handle(std::string_view text) {
  const auto handle = comm::parse_reconfigure_handle(text);
  if (handle.ok()) require(comm::to_text(handle.value()) == text);
}

void take_event(std::string_view text) {
  const auto event = launch::decode_event(text);
  if (!event.ok()) return;
  const auto again = launch::decode_event(launch::encode(event.value()));
  require(again.ok() && launch::encode(again.value()) == launch::encode(event.value()));
}

}  // namespace

void take(std::string_view bytes) {
  if (bytes.empty()) return;
  const std::string_view input = bytes.substr(1);
  switch (bytes[0]) {
    case 0: return take_handle(input);
    case 1: return take_event(input);
    case 2: (void)launch::parse_hosts(input); return;
    case 3: (void)launch::split_words(input); return;
    case 4: (void)launch::parse_stream_choice(input); return;
    case 5: (void)comm::parse_endpoint(input, "address"); return;
    case 6: (void)site::parse_devices(input); return;
  }
}

std::vector<std::string> seeds() {
  comm::ReconfigureHandle handle{
      .build = "b", .job = "-", .id = "0123456789abcdef", .rank = 2, .pid = 4711, .host = "a"};
  handle.store = {.host = "127.0.0.1", .port = 29500};
  launch::Event join{.kind = launch::EventKind::kJoin, .node = "n1"};
  join.info = {.id = "n1", .node_rank = 1, .workers = 4, .host = "b", .pid = 7, .address = "10.0.0.2"};
  launch::Event services{.kind = launch::EventKind::kServices, .node = "n1", .number = 3};
  services.master_addr = "10.0.0.2";
  services.master_port = 29501;
  return {for_parser(0, comm::to_text(handle)),
          for_parser(1, launch::encode(join)),
          for_parser(1, launch::encode(services)),
          for_parser(2, "a,b:4,user@c,fd00::2,[fd00::3]:4"),
          for_parser(3, R"(ssh -p 22 "a b" 'c\d' e\ f)"),
          for_parser(4, "0:1,1:3"),
          for_parser(5, "[fd00::3]:29500"),
          for_parser(6, "2"),
          for_parser(6, "0,1,3")};
}

}  // namespace lockstep::fuzz
