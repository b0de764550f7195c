#include "support/hung_disk.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fuse.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "support/needs_root.h"

namespace lockstep::test {
namespace {

constexpr std::uint32_t kMaxWrite = 64 << 10;

template <typename T>
std::string_view bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

}  // namespace

struct HungDisk::Request {
  fuse_in_header header{};
  std::string_view body{};

  template <typename T>
  T head() const {
    T value{};
    std::memcpy(&value, body.data(), std::min(sizeof value, body.size()));
    return value;
  }
  // The name after `offset` bytes, without its zero byte.
  std::string_view name(std::size_t offset = 0) const { return body.data() + offset; }
};

HungDisk::HungDisk() {
  device_.reset(needs_root(open("/dev/fuse", O_RDWR | O_NONBLOCK | O_CLOEXEC), "/dev/fuse"));
  event_.reset(needs_root(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd"));
  const Fd context(needs_root(fsopen("fuse", FSOPEN_CLOEXEC), "fsopen"));
  const std::string fd = std::to_string(device_.get());
  const std::array<std::array<const char*, 2>, 4> settings{
      {{"fd", fd.c_str()}, {"rootmode", "40755"}, {"user_id", "0"}, {"group_id", "0"}}};
  for (const auto& [name, value] : settings) {
    needs_root(fsconfig(context.get(), FSCONFIG_SET_STRING, name, value, 0), name);
  }
  needs_root(fsconfig(context.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0), "fsconfig");
  mount_.reset(needs_root(fsmount(context.get(), FSMOUNT_CLOEXEC, 0), "fsmount"));
  nodes_[FUSE_ROOT_ID].folder = true;
  thread_ = std::thread([this] { serve(); });
}

HungDisk::~HungDisk() {
  {
    MutexLock lock(mutex_);
    ended_ = true;
  }
  wake();
  thread_.join();
}

std::string HungDisk::path(const std::string& name) const {
  return fmt::format("/proc/{}/fd/{}/{}", getpid(), mount_.get(), name);
}

void HungDisk::hang() {
  MutexLock lock(mutex_);
  hung_ = true;
}

void HungDisk::go_on() {
  {
    MutexLock lock(mutex_);
    hung_ = false;
  }
  wake();
}

std::string HungDisk::contents(const std::string& name) const {
  MutexLock lock(mutex_);
  const Node* node = &nodes_.at(FUSE_ROOT_ID);
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('/', begin), name.size());
    const auto child = node->children.find(name.substr(begin, end - begin));
    if (child == node->children.end()) return {};
    node = &nodes_.at(child->second);
    begin = end + 1;
  }
  return node->bytes;
}

void HungDisk::wake() const {
  const std::uint64_t one = 1;
  static_cast<void>(!write(event_.get(), &one, sizeof one));
}

void HungDisk::serve() {
  std::vector<char> buffer(kMaxWrite + 8192);
  for (;;) {
    std::array<pollfd, 2> polled{{{event_.get(), POLLIN, 0}, {device_.get(), POLLIN, 0}}};
    {
      MutexLock lock(mutex_);
      if (ended_) return;
      if (hung_) polled[1].fd = -1;
    }
    poll(polled.data(), polled.size(), -1);
    std::uint64_t count = 0;
    static_cast<void>(!read(event_.get(), &count, sizeof count));
    MutexLock lock(mutex_);
    if (hung_) continue;
    const ssize_t size = read(device_.get(), buffer.data(), buffer.size());
    if (size < static_cast<ssize_t>(sizeof(fuse_in_header))) continue;
    Request request;
    std::memcpy(&request.header, buffer.data(), sizeof request.header);
    request.body = std::string_view(buffer.data(), static_cast<std::size_t>(size)).substr(sizeof request.header);
    answer(request);
  }
}

void HungDisk::send(const Request& request, int error, std::string_view reply) const {
  fuse_out_header header{};
  header.len = static_cast<std::uint32_t>(sizeof header + reply.size());
  header.error = -error;
  header.unique = request.header.unique;
  std::array<iovec, 2> parts{{{&header, sizeof header}, {const_cast<char*>(reply.data()), reply.size()}}};
  static_cast<void>(!writev(device_.get(), parts.data(), parts.size()));
}

namespace {

// Closing such a file does not wait. If it did, the kernel would not let a process end while the disk hangs.
fuse_open_out opened() {
  fuse_open_out result{};
  result.open_flags = FOPEN_NOFLUSH;
  return result;
}

fuse_attr attributes(std::uint64_t id, bool folder, std::size_t size) {
  fuse_attr result{};
  result.ino = id;
  result.size = size;
  result.mode = folder ? S_IFDIR | 0755 : S_IFREG | 0644;
  result.nlink = 1;
  return result;
}

}  // namespace

void HungDisk::look_up(const Request& request, std::string_view name) {
  const auto& children = nodes_[request.header.nodeid].children;
  const auto child = children.find(std::string(name));
  if (child == children.end()) return send(request, ENOENT);
  const Node& node = nodes_[child->second];
  fuse_entry_out entry{};
  entry.nodeid = child->second;
  entry.attr = attributes(child->second, node.folder, node.bytes.size());
  if (request.header.opcode != FUSE_CREATE) return send(request, 0, bytes_of(entry));
  send(request, 0, std::string(bytes_of(entry)) + std::string(bytes_of(opened())));
}

void HungDisk::make(const Request& request, std::string_view name, bool folder) {
  const std::uint64_t id = nodes_.size() + FUSE_ROOT_ID;
  nodes_[id].folder = folder;
  nodes_[request.header.nodeid].children.emplace(name, id);
  look_up(request, name);
}

void HungDisk::answer(const Request& request) {
  const std::uint64_t id = request.header.nodeid;
  switch (request.header.opcode) {
    case FUSE_INIT: {
      fuse_init_out out{};
      out.major = FUSE_KERNEL_VERSION;
      out.minor = 31;
      out.max_write = kMaxWrite;
      return send(request, 0, bytes_of(out));
    }
    case FUSE_LOOKUP: return look_up(request, request.name());
    case FUSE_MKDIR: return make(request, request.name(sizeof(fuse_mkdir_in)), true);
    case FUSE_CREATE: return make(request, request.name(sizeof(fuse_create_in)), false);
    case FUSE_GETATTR:
    case FUSE_SETATTR: {
      fuse_attr_out out{};
      out.attr = attributes(id, nodes_[id].folder, nodes_[id].bytes.size());
      return send(request, 0, bytes_of(out));
    }
    case FUSE_OPEN:
    case FUSE_OPENDIR: return send(request, 0, bytes_of(opened()));
    case FUSE_WRITE: {
      const auto in = request.head<fuse_write_in>();
      std::string& bytes = nodes_[id].bytes;
      bytes.resize(std::max<std::size_t>(bytes.size(), in.offset + in.size));
      bytes.replace(in.offset, in.size, request.body.substr(sizeof in, in.size));
      fuse_write_out out{};
      out.size = in.size;
      return send(request, 0, bytes_of(out));
    }
    case FUSE_READ: {
      const auto in = request.head<fuse_read_in>();
      const std::string& bytes = nodes_[id].bytes;
      return send(request, 0, std::string_view(bytes).substr(std::min<std::size_t>(in.offset, bytes.size()), in.size));
    }
    case FUSE_FLUSH:
    case FUSE_RELEASE:
    case FUSE_RELEASEDIR: return send(request, 0);
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT: return;
    default: return send(request, ENOSYS);
  }
}

}  // namespace lockstep::test
