#include "lockstep/image/folder_index.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <memory>
#include <string_view>

#include "base/printable.h"
#include "lockstep/base/fd.h"

namespace lockstep::data {
namespace {

// torchvision's.
const std::vector<std::string>& picture_extensions() {
  static const std::vector<std::string> extensions{".jpg", ".jpeg", ".png",  ".ppm", ".bmp",
                                                   ".pgm", ".tif",  ".tiff", ".webp"};
  return extensions;
}

const std::vector<std::string>& extensions_of(const FolderIndexOptions& options) {
  return options.extensions.empty() ? picture_extensions() : options.extensions;
}

bool ends_with_any(std::string_view name, const std::vector<std::string>& endings) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  return std::any_of(endings.begin(), endings.end(), [&](std::string_view ending) {
    if (name.size() < ending.size()) return false;
    const std::string_view end = name.substr(name.size() - ending.size());
    return std::equal(end.begin(), end.end(), ending.begin(), [&](char a, char b) { return lower(a) == b; });
  });
}

// Python's order of names: that of bytes, but for names that are not UTF-8.
bool is_before(const std::string& a, const std::string& b) {
  const auto [at, bt] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  const auto is_ascii = [](auto it, auto end) { return it == end || static_cast<unsigned char>(*it) < 0x80; };
  if (is_ascii(at, a.end()) && is_ascii(bt, b.end())) return a < b;
  return surrogate_escaped(a) < surrogate_escaped(b);
}

struct CloseFolder {
  void operator()(DIR* folder) const { ::closedir(folder); }
};

// Everything else counts as a file, as in os.walk, also broken links and FIFOs: samples have torchvision's numbers, and
// loading such a sample says what is wrong. Only links, and entries of file systems without types, cost an fstatat().
bool is_folder(const dirent& entry, int parent) {
  if (entry.d_type != DT_LNK && entry.d_type != DT_UNKNOWN) return entry.d_type == DT_DIR;
  struct stat info {};
  return ::fstatat(parent, entry.d_name, &info, 0) == 0 && S_ISDIR(info.st_mode);
}

struct Listing {
  std::vector<std::string> files;
  std::vector<std::string> folders;
  std::pair<dev_t, ino_t> identity;
};

Result<Listing> list(const std::string& path) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct stat info {};
  if (!fd.valid() || ::fstat(fd.get(), &info) != 0) {
    const int error = errno;
    const ErrorCode code = error == ENOENT || error == ENOTDIR ? ErrorCode::kNotFound
                           : error == EACCES || error == EPERM ? ErrorCode::kPermission
                                                               : ErrorCode::kIo;
    return Status(code, Status::from_errno("cannot open the folder " + printable(path), error).message());
  }
  const int number = fd.release();
  const std::unique_ptr<DIR, CloseFolder> folder(::fdopendir(number));
  if (!folder) {
    const Status status = Status::from_errno("cannot list the folder " + printable(path), errno);
    Fd(number).reset();
    return status;
  }
  Listing listing;
  listing.identity = {info.st_dev, info.st_ino};
  errno = 0;
  while (const dirent* entry = ::readdir(folder.get())) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") {
      (is_folder(*entry, ::dirfd(folder.get())) ? listing.folders : listing.files).emplace_back(name);
    }
    errno = 0;
  }
  if (errno != 0) return Status::from_errno("cannot list the folder " + printable(path), errno);
  return listing;
}

// Searches the folder of one class and all folders in it.
class ClassSearch {
 public:
  struct Folder {
    std::string path;
    std::vector<std::string> pictures;
  };
  using Identity = std::pair<dev_t, ino_t>;

  ClassSearch(Identity root, const FolderIndexOptions& options) : options_(options), above_{root} {}

  Status search(const std::string& path) {
    Result<Listing> listing = list(path);
    if (!listing.ok()) {
      // A folder may be removed while we search.
      return listing.status().code() == ErrorCode::kNotFound ? Status() : listing.status();
    }
    const auto identity = listing->identity;
    if (std::find(above_.begin(), above_.end(), identity) != above_.end())
      return {};  // a link to a folder that contains it
    Folder found{path, {}};
    for (std::string& name : listing->files) {
      if (is_sample(path, name)) found.pictures.push_back(std::move(name));
    }
    std::sort(found.pictures.begin(), found.pictures.end(), is_before);
    if (!found.pictures.empty()) folders_.push_back(std::move(found));
    above_.push_back(identity);
    for (const std::string& name : listing->folders) LOCKSTEP_RETURN_IF_ERROR(search(fmt::format("{}/{}", path, name)));
    above_.pop_back();
    return {};
  }

  // Sorted by path, like a sorted os.walk.
  std::vector<Folder> take_folders() {
    std::sort(folders_.begin(), folders_.end(),
              [](const Folder& a, const Folder& b) { return is_before(a.path, b.path); });
    return std::move(folders_);
  }

 private:
  bool is_sample(const std::string& folder, const std::string& name) const {
    if (options_.is_valid_file) return options_.is_valid_file(folder + "/" + name);
    return ends_with_any(name, extensions_of(options_));
  }

  const FolderIndexOptions& options_;
  std::vector<Folder> folders_;
  std::vector<Identity> above_;  // the folders that contain the present one
};

std::string shortened(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 5;
  const std::vector<std::string> first(names.begin(),
                                       names.begin() + static_cast<std::ptrdiff_t>(std::min(names.size(), kMost)));
  const std::string text = printable(fmt::format("{}", fmt::join(first, ", ")));
  return names.size() > kMost ? fmt::format("{} and {} more", text, names.size() - kMost) : text;
}

std::string expected_files(const FolderIndexOptions& options) {
  if (options.is_valid_file) return "that is_valid_file accepts";
  return fmt::format("that end in {}", fmt::join(extensions_of(options), ", "));
}

Status check_folders(const FolderIndex& index, const std::vector<std::string>& empty, const std::string& root,
                     const FolderIndexOptions& options) {
  if (!empty.empty() && !options.allow_empty) {
    return {
        ErrorCode::kNotFound,
        fmt::format(
            "{}: no picture in {} of {} class folders: {}. Expected files {}; remove these folders or set allow_empty",
            printable(root), empty.size(), index.classes.size(), shortened(empty), expected_files(options))};
  }
  return {};
}

}  // namespace

Result<FolderIndex> index_image_folder(const std::filesystem::path& root_path, const FolderIndexOptions& options) {
  if (options.is_valid_file && !options.extensions.empty()) {
    return Status(ErrorCode::kInvalidArgument, "extensions and is_valid_file exclude each other: give one of them");
  }
  std::string root = root_path.native();
  while (root.size() > 1 && root.back() == '/') root.pop_back();
  Result<Listing> top = list(root);
  if (!top.ok()) return top.status();
  FolderIndex index;
  index.classes = std::move(top->folders);
  std::sort(index.classes.begin(), index.classes.end(), is_before);
  if (index.classes.empty()) {
    return Status(ErrorCode::kNotFound,
                  fmt::format("{}: expected a folder for each class, found no folder and {} files", printable(root),
                              top->files.size()));
  }
  std::vector<std::string> empty;
  for (std::size_t label = 0; label < index.classes.size(); ++label) {
    const std::string& name = index.classes[label];
    index.class_to_idx[name] = static_cast<std::int64_t>(label);
    ClassSearch search(top->identity, options);
    LOCKSTEP_RETURN_IF_ERROR(search.search(fmt::format("{}/{}", root, name)));
    const std::size_t before = index.samples.size();
    for (const ClassSearch::Folder& folder : search.take_folders()) {
      for (const std::string& picture : folder.pictures) {
        index.samples.push_back({folder.path + "/" + picture, static_cast<std::int64_t>(label)});
      }
    }
    if (index.samples.size() == before) empty.push_back(name);
  }
  LOCKSTEP_RETURN_IF_ERROR(check_folders(index, empty, root, options));
  return index;
}

Result<std::vector<std::string>> list_pictures(const std::filesystem::path& root_path) {
  std::string root = root_path.native();
  while (root.size() > 1 && root.back() == '/') root.pop_back();
  if (const Result<Listing> top = list(root); !top.ok()) return top.status();
  const FolderIndexOptions options;
  ClassSearch search({}, options);
  LOCKSTEP_RETURN_IF_ERROR(search.search(root));
  std::vector<std::string> paths;
  for (const ClassSearch::Folder& folder : search.take_folders()) {
    for (const std::string& picture : folder.pictures) paths.push_back(folder.path + "/" + picture);
  }
  return paths;
}

}  // namespace lockstep::data
