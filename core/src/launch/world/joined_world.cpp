#include "lockstep/base/mutex.h"
#include "lockstep/launch/world.h"

namespace lockstep::launch {
namespace {

struct Joined {
  Mutex mutex;
  std::optional<World> world LOCKSTEP_GUARDED_BY(mutex);
};

// Never destroyed: destructors of static objects may still leave the world.
Joined& joined() {
  static auto* instance = new Joined;
  return *instance;
}

}  // namespace

void set_joined_world(std::optional<World> world) {
  Joined& place = joined();
  MutexLock lock(place.mutex);
  place.world = std::move(world);
}

std::optional<World> joined_world() {
  Joined& place = joined();
  MutexLock lock(place.mutex);
  return place.world;
}

}  // namespace lockstep::launch
