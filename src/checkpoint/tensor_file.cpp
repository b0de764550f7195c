#include "lockstep/checkpoint/tensor_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <span>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/fd.h"
#include "lockstep/checkpoint/errors.h"
#include "sha256.h"
#include "tensor_file_header.h"

namespace lockstep::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "tensor files hold little-endian bytes");

constexpr std::uint64_t kMostHeaderBytes = 100'000'000;  // as other readers of the format
constexpr std::size_t kPiece = 1 << 20;                  // hashed while still in cache
const std::string kNoDigits(kSha256Digits, '0');

// A file being read, and what has been read hashed.
class Reader {
 public:
  explicit Reader(const std::filesystem::path& path) : path_(path) {
    fd_.reset(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd_.valid()) fail_system("cannot open", errno);
    struct stat info {};
    if (::fstat(fd_.get(), &info) != 0) fail_system("cannot ask for the size", errno);
    if (!S_ISREG(info.st_mode)) fail(ErrorCode::kIo, "expected a regular file");
    size_ = static_cast<std::uint64_t>(info.st_size);
  }

  // The header's text, after its length.
  std::string read_header_text() {
    std::uint64_t length = 0;
    if (size_ < sizeof(length)) fail(ErrorCode::kCorrupt, fmt::format("damaged: only {} bytes long", size_));
    read(&length, sizeof(length));
    if (length > size_ - sizeof(length) || length > kMostHeaderBytes) {
      fail(ErrorCode::kCorrupt, fmt::format("damaged: a header of {} bytes in a file of {}", length, size_));
    }
    std::string text(length, '\0');
    read(text.data(), length);
    data_bytes_ = size_ - sizeof(length) - length;
    return text;
  }

  void read(void* bytes, std::size_t count) {
    auto* out = static_cast<char*>(bytes);
    while (count > 0) {
      const ssize_t got = ::read(fd_.get(), out, count);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail_system("cannot read", errno);
      if (got == 0) fail(ErrorCode::kCorrupt, "damaged: the file became shorter while it was read");
      out += got;
      count -= static_cast<std::size_t>(got);
    }
  }

  TensorFileHeader parse(std::string_view text) const {
    try {
      return parse_header(text, data_bytes_);
    } catch (const CheckpointError& error) {
      fail(error.code(), error.code() == ErrorCode::kCorrupt ? fmt::format("damaged: {}", error.what()) : error.what());
    }
  }

  [[noreturn]] void fail(ErrorCode code, const std::string& what) const {
    throw CheckpointError(code, fmt::format("{}: {}", path_.native(), what));
  }

 private:
  [[noreturn]] void fail_system(const char* what, int error_number) const {
    const ErrorCode code = error_number == ENOENT   ? ErrorCode::kNotFound
                           : error_number == EACCES ? ErrorCode::kPermission
                                                    : ErrorCode::kIo;
    fail(code, fmt::format("{}: {}", what, std::strerror(error_number)));
  }

  std::filesystem::path path_;
  Fd fd_;
  std::uint64_t size_ = 0;
  std::uint64_t data_bytes_ = 0;
};

std::string_view length_prefix(const std::uint64_t& length) {
  return {reinterpret_cast<const char*>(&length), sizeof(length)};
}

// The hash of all that comes before the data, with zeros for the checksum's digits.
Sha256 hash_header(std::string text, std::optional<std::size_t> digits) {
  const std::uint64_t length = text.size();
  if (digits) text.replace(*digits, kSha256Digits, kNoDigits);
  Sha256 hash;
  hash.update(length_prefix(length));
  hash.update(text);
  return hash;
}

// What the file system refused, as this layer tells it.
void check_written(const Status& status) {
  if (status.ok()) return;
  throw CheckpointError(status.code(), status.message() + "; checkpoints saved earlier are untouched");
}

AtomicFile create_file(const std::filesystem::path& path) {
  auto file = AtomicFile::create(path);
  check_written(file.status());
  return std::move(file).value();
}

std::span<const std::uint8_t> as_bytes(const void* data, std::size_t count) {
  return {static_cast<const std::uint8_t*>(data), count};
}

template <typename Each>
void in_pieces(void* bytes, std::size_t count, Each each) {
  auto* at = static_cast<char*>(bytes);
  for (std::size_t done = 0; done < count; done += kPiece) each(at + done, std::min(kPiece, count - done));
}

}  // namespace

void write_tensor_file(const std::filesystem::path& path, const TensorFile& file) {
  TensorFileHeader header{lay_out(file.tensors), file.metadata};
  header.metadata[std::string(kFormatKey)] = kFormat;
  header.metadata[std::string(kChecksumKey)] = kNoDigits;
  const std::string text = format_header(header);
  const std::size_t digits = find_checksum(text).value();

  AtomicFile out = create_file(path);
  const std::uint64_t length = text.size();
  check_written(out.append(as_bytes(&length, sizeof(length))));
  check_written(out.append(as_bytes(text.data(), text.size())));
  Sha256 hash = hash_header(text, digits);
  for (const TensorEntry& entry : header.entries) {
    const torch::Tensor tensor = file.tensors.at(entry.name).detach().cpu().contiguous();
    in_pieces(const_cast<void*>(tensor.const_data_ptr()), entry.end - entry.begin, [&](char* piece, std::size_t count) {
      hash.update(piece, count);
      check_written(out.append(as_bytes(piece, count)));
    });
  }
  const std::string found = hash.digits();
  check_written(out.overwrite(sizeof(length) + digits, as_bytes(found.data(), found.size())));
  check_written(out.commit());
}

TensorFile read_tensor_file(const std::filesystem::path& path, Checksum checksum) {
  Reader reader(path);
  const std::string text = reader.read_header_text();
  TensorFileHeader header = reader.parse(text);
  const auto digits = find_checksum(text);
  if (!digits && (checksum == Checksum::kRequired || header.metadata.contains(std::string(kChecksumKey)))) {
    reader.fail(ErrorCode::kCorrupt, fmt::format("damaged: its metadata has no valid {}", kChecksumKey));
  }
  Sha256 hash = hash_header(text, digits);
  TensorFile file;
  for (const TensorEntry& entry : header.entries) {
    torch::Tensor tensor = torch::empty(entry.shape, entry.dtype);
    in_pieces(tensor.mutable_data_ptr(), entry.end - entry.begin, [&](char* piece, std::size_t count) {
      reader.read(piece, count);
      hash.update(piece, count);
    });
    file.tensors[entry.name] = std::move(tensor);
  }
  if (digits) {
    const std::string found = hash.digits();
    if (found != std::string_view(text).substr(*digits, kSha256Digits)) {
      reader.fail(ErrorCode::kCorrupt,
                  fmt::format("damaged: its contents do not fit its checksum (SHA-256 {:.16}...)", found));
    }
  }
  file.metadata = std::move(header.metadata);
  file.metadata.erase(std::string(kFormatKey));
  file.metadata.erase(std::string(kChecksumKey));
  return file;
}

std::map<std::string, std::string> read_tensor_file_metadata(const std::filesystem::path& path) {
  Reader reader(path);
  return reader.parse(reader.read_header_text()).metadata;
}

}  // namespace lockstep::checkpoint
