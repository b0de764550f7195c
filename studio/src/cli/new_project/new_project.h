// `lockstep new`: a project that builds and trains at once.
#pragma once

#include <filesystem>

#include "lockstep/base/status.h"

namespace lockstep::cli {

// Copies the files of `templates` to `folder`, with the folder's name for @NAME@, and draws some pictures to train on.
// The folder must not be there, or be empty; its name is a letter followed by letters, digits, '-' or '_'
// (kInvalidArgument). After an error it is as it was before.
Status new_project(const std::filesystem::path& templates, const std::filesystem::path& folder);

// Where the templates of the program in `program_folder` are.
std::filesystem::path project_templates(const std::filesystem::path& program_folder);

}  // namespace lockstep::cli
