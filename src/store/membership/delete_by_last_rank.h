// What ranks leave in a store in order to meet is of no use once they have met, and would stay as long as the store.
#pragma once

#include <span>
#include <string>

#include "lockstep/store/store.h"

namespace lockstep::comm {

// Each of `world` ranks says that it needs `keys` no more; the last one deletes them. `counter` is a key for that
// alone, which goes too. Best effort: when the store fails, or a rank never gets here, they stay.
void delete_by_last_rank(Store& store, const std::string& counter, int world, std::span<const std::string> keys);

}  // namespace lockstep::comm
