#include "launch/nodes/say_notes.h"

#include "lockstep/base/log.h"

namespace lockstep::launch {

void say_notes(NodeLink& link, Console& err, bool reports) {
  for (const Note& note : link.take_notes()) {
    if (note.failure && reports) err.say(format_failure(*note.failure));
    if (!note.important || !reports) {
      log::info(note.text);
    } else if (!note.text.empty()) {
      err.say("lockstep: " + note.text);
    }
  }
}

}  // namespace lockstep::launch
