// Removes keys from a store that ranks needed only to form a group; otherwise they would stay as long as the store.
#pragma once

#include <span>
#include <string>

#include "lockstep/store/store.h"

namespace lockstep::comm {

// Each of `group_size` ranks calls this when it no longer needs `keys`; the last one deletes them. `counter` is a key
// for this purpose alone, deleted too. Best effort: the keys stay when the store fails or a rank never calls.
void delete_by_last_rank(Store& store, const std::string& counter, int group_size, std::span<const std::string> keys);

}  // namespace lockstep::comm
