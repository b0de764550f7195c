#include "launch/nodes/say_notes.h"

#include "lockstep/base/log.h"

namespace lockstep::launch {

void say_notes(NodeLink& link, Console& err) {
  for (const Note& note : link.take_notes()) {
    if (note.failure) err.say(format_failure(*note.failure));
    if (!note.important) {
      log::info(note.text);
    } else if (!note.text.empty()) {
      err.say("lockstep: " + note.text);
    }
  }
}

}  // namespace lockstep::launch
