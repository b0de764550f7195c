// Files that only this process's user can have written.
#pragma once

#include <string>

#include "lockstep/base/status.h"

namespace lockstep::comm {

// kPermission when the open file belongs to another user, or others may write to it; kInvalidArgument when it is no
// regular file. A network file system may show all files of a directory under another number (squashing): that of the
// directory counts as this user's where nobody else can write to the directory.
Status check_private(int fd, const std::string& path);

}  // namespace lockstep::comm
