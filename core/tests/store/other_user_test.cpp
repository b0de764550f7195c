// Stores without a job key on a machine that several users share, and the files that stores use there.
#include "support/other_user.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <future>
#include <optional>

#include "lockstep/store/file_store.h"
#include "lockstep/store/rendezvous.h"
#include "lockstep/store/tcp_store.h"
#include "store/deadlines.h"
#include "store/file/private_file.h"
#include "store/tcp/handshake.h"
#include "store/tcp/key_server.h"
#include "store/tcp/secure_socket.h"
#include "store/tcp/socket.h"
#include "store/tcp/user_key.h"
#include "support/held_port.h"
#include "support/scratch_folder.h"

namespace lockstep::comm {
namespace {

using std::chrono::seconds;
using test::OtherUser;

std::string text_of(const Status& status) {
  return std::string(to_string(status.code())) + ": " + status.message();
}

void expect_mentions(const std::string& text, std::initializer_list<std::string> words) {
  for (const std::string& word : words) EXPECT_NE(text.find(word), std::string::npos) << word << " is not in: " << text;
}

const std::string kMe = "runs as user " + std::to_string(geteuid());
const std::string kOther = std::to_string(OtherUser::kNumber);

TEST(StoreOfAnotherUser, LetsNobodyElseInWithoutAKey) {
  const auto server = TcpStoreServer::start({}).value();
  const auto mine = TcpStore::connect({.server = server->endpoint()}, soon()).value();
  ASSERT_TRUE(mine->set("token", "secret").ok());
  OtherUser polite([&] { return text_of(TcpStore::connect({.server = server->endpoint()}, soon()).status()); });
  expect_mentions(polite.result(), {"permission denied", server->endpoint().text(), kMe, "this one as " + kOther,
                                    "LOCKSTEP_JOB_KEY", "MASTER_PORT"});
  // A client that does not check the store's user, with: no key at all, a guess, and the answer of its key socket.
  OtherUser rude([&] {
    std::string verdicts;
    for (int attempt = 0; attempt < 3; ++attempt) {
      Fd fd = connect_to(server->endpoint(), soon()).value();
      std::string hello(handshake::kGreetingBytes, '\0');
      (void)receive_all(fd.get(), hello, soon());
      const auto greeting = handshake::read_greeting(hello, "test").value();
      std::string key = attempt == 0 ? "" : "guess";
      if (attempt == 2) key = fetch_key(greeting.key_socket, soon()).status().ok() ? "got it" : "refused";
      auto socket = SecureSocket::client(std::move(fd), key, place_of(server->endpoint())).value();
      verdicts += std::string(to_string(socket.shake_hands(soon()).code())) + " " + key + "; ";
    }
    return verdicts;
  });
  EXPECT_EQ(rude.result(), "permission denied ; permission denied guess; permission denied refused; ");
  EXPECT_EQ(mine->get("token", soon()).value(), "secret");
  EXPECT_EQ(mine->num_keys().value(), 1);
}

TEST(StoreOfAnotherUser, IsNotJoinedAndDoesNotKeepItsPortFromUs) {
  const test::HeldPort port;
  const Endpoint address{"127.0.0.1", port.number()};
  OtherUser squatter([&]() -> std::string {
    const auto server = TcpStoreServer::start({.listen_at = address});
    if (!server.ok()) return server.status().message();
    while (true) pause();
  });
  const auto refused = [&] { return TcpStore::connect({.server = address}, soon()).status(); };
  expect_mentions(text_of(refused()), {"permission denied", address.text(), "user " + kOther, "LOCKSTEP_JOB_KEY"});
  // Rank 0 cannot listen there; every rank says why.
  std::vector<std::future<Status>> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    RendezvousOptions options;
    options.init_method = "tcp://" + address.text();
    options.rank = rank;
    options.world_size = 2;
    options.timeout = seconds(2);
    options.environment = {};
    ranks.push_back(std::async(std::launch::async, [options] { return rendezvous(options).status(); }));
  }
  expect_mentions(text_of(ranks[0].get()), {"rank 0 of 2", address.text(), "in use"});
  expect_mentions(text_of(ranks[1].get()), {"rank 1 of 2", "permission denied", "user " + kOther});
}

TEST(StoreOfAnotherUser, FloodsDoNotKeepRanksFromMeeting) {
  const test::HeldPort port;
  const Endpoint address{"127.0.0.1", port.number()};
  OtherUser flood([&]() -> std::string {
    const std::string garbage(1000, 'x');
    std::vector<Fd> open;
    while (true) {
      auto fd = connect_to(address, soon());
      if (!fd.ok()) continue;
      (void)::send(fd.value().get(), garbage.data(), open.size() % 3 * 40, MSG_NOSIGNAL | MSG_DONTWAIT);
      open.push_back(std::move(fd).value());
      if (open.size() > 200) open.clear();
    }
  });
  std::vector<std::future<Status>> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    RendezvousOptions options;
    options.init_method = "tcp://" + address.text();
    options.rank = rank;
    options.world_size = 4;
    options.timeout = seconds(40);
    options.environment = {};
    ranks.push_back(std::async(std::launch::async, [options] {
      auto met = rendezvous(options);
      return met.ok() ? met->release() : met.status();
    }));
  }
  for (auto& rank : ranks) EXPECT_EQ(text_of(rank.get()), "ok: ");
}

// Ranks of several machines: the store is open to the network, and the user's own key keeps strangers out.
class UserKey : public testing::Test {
 protected:
  UserKey() { use(folder_.path("state")); }
  ~UserKey() override { ::unsetenv("XDG_STATE_HOME"); }
  static void use(const std::string& state) { ::setenv("XDG_STATE_HOME", state.c_str(), 1); }
  std::string path() const { return folder_.path("state") + "/lockstep/key"; }

  const test::ScratchFolder folder_;
};

TEST_F(UserKey, IsMadeOnceAndForItsUserAlone) {
  std::vector<std::future<std::string>> makers;
  for (int i = 0; i < 8; ++i) {
    makers.push_back(std::async(std::launch::async, [] { return user_key(Environment::of_process()).value(); }));
  }
  const std::string key = makers[0].get();
  EXPECT_EQ(key.size(), 64U);
  for (std::size_t i = 1; i < makers.size(); ++i) EXPECT_EQ(makers[i].get(), key);
  const auto folder = std::filesystem::path(path()).parent_path();
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1) << "drafts are left";
  struct stat info {};
  ASSERT_EQ(::stat(path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
  ASSERT_EQ(::stat(folder.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700U);
}

TEST_F(UserKey, ThatOthersCouldReadOrMakeIsRefused) {
  const Environment environment = Environment::of_process();
  ASSERT_TRUE(user_key(environment).ok());
  ASSERT_EQ(::chmod(path().c_str(), 0640), 0);
  expect_mentions(text_of(user_key(environment).status()), {"permission denied", path(), "640", "remove it"});
  ASSERT_EQ(::chmod(path().c_str(), 0600), 0);
  ASSERT_EQ(::chown(path().c_str(), OtherUser::kNumber, OtherUser::kNumber), 0);
  expect_mentions(text_of(user_key(environment).status()), {"permission denied", path(), "user " + kOther});
  ASSERT_EQ(::unlink(path().c_str()), 0);
  ASSERT_EQ(::symlink("/etc/hostname", path().c_str()), 0);
  EXPECT_FALSE(user_key(environment).ok());
  EXPECT_EQ(user_key(Environment()).status().code(), ErrorCode::kNotFound);
}

TEST_F(UserKey, OpensAStoreThatTheNetworkReaches) {
  const auto server = TcpStoreServer::start({.listen_at = {"0.0.0.0", 0}}).value();
  const Endpoint address{"127.0.0.1", server->port()};
  EXPECT_TRUE(TcpStore::connect({.server = address}, soon()).value()->set("key", "1").ok());
  const test::ScratchFolder home_of_other;
  ASSERT_EQ(::chown(home_of_other.path().c_str(), OtherUser::kNumber, OtherUser::kNumber), 0);
  OtherUser other([&] {
    use(home_of_other.path("state"));
    return text_of(TcpStore::connect({.server = address}, soon()).status());
  });
  expect_mentions(other.result(), {"permission denied", address.text(), "home directory", "LOCKSTEP_JOB_KEY"});
}

TEST_F(UserKey, WithoutAPlaceForItTheNetworkIsNotServed) {
  use("/proc/no such place");
  const auto server = TcpStoreServer::start({.listen_at = {"0.0.0.0", 0}});
  EXPECT_EQ(server.status().code(), ErrorCode::kInvalidArgument);
  expect_mentions(server.status().message(), {"/proc/no such place", "LOCKSTEP_JOB_KEY", "0.0.0.0"});
}

TEST(FileStoreOfAnotherUser, IsRefused) {
  const test::ScratchFolder folder;
  ASSERT_EQ(::chmod(folder.path().c_str(), 01777), 0);  // as /tmp
  const std::string theirs = folder.path("theirs");
  OtherUser other([&] {
    const Fd file(::open(theirs.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    return std::string(file.valid() ? "made" : "not made");
  });
  EXPECT_EQ(other.result(), "made");
  // Refused by our code, or by a kernel with fs.protected_regular.
  expect_mentions(text_of(FileStore::open(theirs).status()), {"permission denied", theirs});
  const std::string link = folder.path("link");
  ASSERT_EQ(::symlink(folder.path("target").c_str(), link.c_str()), 0);
  EXPECT_FALSE(FileStore::open(link).ok());
  EXPECT_FALSE(std::filesystem::exists(folder.path("target")));
  const std::string pipe = folder.path("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(FileStore::open(pipe).status().code(), ErrorCode::kInvalidArgument);
}

TEST(FileStoreOfAnotherUser, MayNotReadOursNorHaveWrittenIt) {
  const test::ScratchFolder folder;
  const std::string path = folder.path("store");
  folder.write("store", "");
  ASSERT_EQ(::chmod(path.c_str(), 0666), 0);
  expect_mentions(text_of(FileStore::open(path).status()), {"permission denied", path, "666", "chmod 600"});
  ASSERT_EQ(::chmod(path.c_str(), 0644), 0);
  const auto store = FileStore::open(path).value();
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
}

// A file server may give every file of a directory to one number.
TEST(FileStoreOfAnotherUser, OwnersThatAFileServerMadeUpCountWhereOthersCannotWrite) {
  const test::ScratchFolder folder;
  const std::string path = folder.path("store");
  folder.write("store", "");
  for (const std::string& squashed : {folder.path().native(), path})
    ASSERT_EQ(::chown(squashed.c_str(), OtherUser::kNumber, OtherUser::kNumber), 0);
  const Fd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_TRUE(check_private(file.get(), path).ok());
  ASSERT_EQ(::chmod(folder.path().c_str(), 0777), 0);
  EXPECT_EQ(check_private(file.get(), path).code(), ErrorCode::kPermission);
}

}  // namespace
}  // namespace lockstep::comm
