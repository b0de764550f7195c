// Which machine a process is on, as far as sharing memory goes: one word, which ranks compare. Containers of one
// machine have different words if they cannot share memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/status.h"

namespace lockstep::comm {

struct MachineFacts {
  std::string boot = {};  // boot_id(); empty: unknown
  std::uint64_t network =
      0;  // inode number of the network namespace, to which abstract Unix sockets belong; 0: unknown
  std::optional<std::uint64_t> user = {};  // outside_user() of this process; memory is not handed to other users
};

// A lack of descriptors is an error: the process must not seem to be on another machine because of it.
Result<MachineFacts> machine_facts();

// "BOOT:NETWORK:USER". If a part is unknown: a word with `own`, which no other process has, so that this one uses the
// network.
std::string machine_word(const MachineFacts& facts, const std::string& own);

// The user in the namespace around this process's user namespace, by the text of /proc/PID/uid_map. So processes of one
// user are equal whatever their containers call them. Empty: the namespace has no number for the user.
std::optional<std::uint64_t> outside_user(const std::string& uid_map, std::uint64_t user);

// Why two ranks on one machine do not share memory, for people: "they have different networks, ...". Empty if they do
// share it, are on different machines, or have words that somebody chose (LOCKSTEP_MACHINE).
std::string why_apart(std::string_view word, std::string_view other);

}  // namespace lockstep::comm
