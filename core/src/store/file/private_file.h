// Checks that only this process's user can have written a file.
#pragma once

#include <string>

#include "lockstep/base/status.h"

namespace lockstep::comm {

// kPermission when the open file belongs to another user or others may write to it; kInvalidArgument when it is not a
// regular file. A network file system may show all files under another user's number (squashing): then the owner of the
// directory counts as this user, if nobody else can write to the directory.
Status check_private(int fd, const std::string& path);

}  // namespace lockstep::comm
