// What a side of an encrypted connection makes of peers that use TLS as it does not.
#include "store/tcp/secure_socket.h"

#include <gtest/gtest.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/socket.h>

#include <array>
#include <csignal>
#include <functional>
#include <memory>
#include <string>

#include "lockstep/store/tcp_store.h"
#include "store/deadlines.h"
#include "store/tcp/handshake.h"
#include "store/tcp/socket.h"
#include "store/tcp_servers.h"

namespace lockstep::comm {
namespace {

const std::string kJobKey = "secret of the job";
const std::string kPlaceOfServer = "10.0.0.7 29500";

// OpenSSL as it comes, with a member's key.
class Peer {
 public:
  using Change = std::function<void(SSL_CTX*)>;

  Peer(
      Fd fd, std::string place, const Change& change = [](SSL_CTX*) {})
      : fd_(std::move(fd)), place_(std::move(place)) {
    std::signal(SIGPIPE, SIG_IGN);
    context_ = ::SSL_CTX_new(::TLS_method());
    ::SSL_CTX_set_psk_use_session_callback(context_, &Peer::use_session);
    ::SSL_CTX_set_psk_find_session_callback(context_, &Peer::find_session);
    change(context_);
    ssl_ = ::SSL_new(context_);
    SSL_set_app_data(ssl_, this);
    ::SSL_set_fd(ssl_, fd_.get());
  }
  ~Peer() {
    ::SSL_free(ssl_);
    ::SSL_CTX_free(context_);
    ::ERR_clear_error();
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  SSL* ssl() { return ssl_; }
  // Whether a call on the non-blocking socket has only to be repeated.
  bool goes_on(int result) const {
    const int error = ::SSL_get_error(ssl_, result);
    return error == SSL_ERROR_NONE || error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE;
  }

 private:
  SSL_SESSION* session() const {
    const std::array<unsigned char, 2> cipher{0x13, 0x01};
    const std::string secret = handshake::tls_key(kJobKey, place_);
    SSL_SESSION* const made = ::SSL_SESSION_new();
    ::SSL_SESSION_set1_master_key(made, reinterpret_cast<const unsigned char*>(secret.data()), secret.size());
    ::SSL_SESSION_set_cipher(made, ::SSL_CIPHER_find(ssl_, cipher.data()));
    ::SSL_SESSION_set_protocol_version(made, TLS1_3_VERSION);
    return made;
  }
  static int use_session(SSL* ssl, const EVP_MD* /*digest*/, const unsigned char** identity, std::size_t* bytes,
                         SSL_SESSION** session) {
    const Peer& peer = *static_cast<Peer*>(SSL_get_app_data(ssl));
    *identity = reinterpret_cast<const unsigned char*>(peer.place_.data());
    *bytes = peer.place_.size();
    *session = peer.session();
    return 1;
  }
  static int find_session(SSL* ssl, const unsigned char* /*identity*/, std::size_t /*bytes*/, SSL_SESSION** session) {
    *session = static_cast<Peer*>(SSL_get_app_data(ssl))->session();
    return 1;
  }

  Fd fd_;
  const std::string place_;
  SSL_CTX* context_ = nullptr;
  SSL* ssl_ = nullptr;
};

std::array<Fd, 2> connected() {
  std::array<int, 2> ends{-1, -1};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()), 0);
  return {Fd(ends[0]), Fd(ends[1])};
}

// How a client's handshake ends with a server that is given each turn.
Status handshake_with(Fd fd, const std::function<void()>& turn_of_server) {
  SecureSocket client = SecureSocket::client(std::move(fd), kJobKey, kPlaceOfServer).value();
  const Deadline deadline = soon();
  while (!deadline.expired()) {
    const auto done = client.shake_hands();
    if (!done.ok()) return done.status();
    if (done.value()) return {};
    turn_of_server();
  }
  return {ErrorCode::kTimeout, "the handshake has no end"};
}

Status handshake_with_peer(const Peer::Change& change) {
  auto [own, other] = connected();
  Peer peer(std::move(other), kPlaceOfServer, change);
  ::SSL_set_accept_state(peer.ssl());
  return handshake_with(std::move(own), [&] { static_cast<void>(::SSL_do_handshake(peer.ssl())); });
}

Status handshake_with_server(const std::string& key, const std::string& place) {
  auto [own, other] = connected();
  SecureSocket server = SecureSocket::server(std::move(other), key, {place}, {}).value();
  return handshake_with(std::move(own), [&] { static_cast<void>(server.shake_hands()); });
}

// A server of TLS that knows no key, and shows a certificate instead.
void show_certificate(SSL_CTX* context) {
  ::SSL_CTX_set_psk_find_session_callback(context, nullptr);
  const std::unique_ptr<EVP_PKEY, decltype(&::EVP_PKEY_free)> key(EVP_EC_gen("P-256"), &::EVP_PKEY_free);
  const std::unique_ptr<X509, decltype(&::X509_free)> certificate(::X509_new(), &::X509_free);
  ::X509_gmtime_adj(X509_getm_notBefore(certificate.get()), 0);
  ::X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 1000);
  ::X509_set_pubkey(certificate.get(), key.get());
  EXPECT_GT(::X509_sign(certificate.get(), key.get(), ::EVP_sha256()), 0);
  EXPECT_EQ(::SSL_CTX_use_certificate(context, certificate.get()), 1);
  EXPECT_EQ(::SSL_CTX_use_PrivateKey(context, key.get()), 1);
}

TEST(SecureSocket, AFailedHandshakeSaysWhy) {
  EXPECT_TRUE(handshake_with_server(kJobKey, kPlaceOfServer).ok());
  EXPECT_TRUE(handshake_with_peer([](SSL_CTX*) {}).ok());
  EXPECT_EQ(handshake_with_server("secret of another job", kPlaceOfServer).code(), ErrorCode::kPermission);
  EXPECT_EQ(handshake_with_peer(show_certificate).code(), ErrorCode::kPermission);
  EXPECT_EQ(handshake_with_server(kJobKey, "10.0.0.8 29500").code(), ErrorCode::kMismatch);
  for (const auto& change :
       {Peer::Change([](SSL_CTX* context) { SSL_CTX_set_max_proto_version(context, TLS1_2_VERSION); }),
        Peer::Change([](SSL_CTX* context) { ::SSL_CTX_set_ciphersuites(context, TLS1_3_RFC_AES_256_GCM_SHA384); }),
        Peer::Change([](SSL_CTX* context) { SSL_CTX_set1_groups_list(context, "P-384"); })}) {
    const Status status = handshake_with_peer(change);
    EXPECT_EQ(status.code(), ErrorCode::kUnsupported) << status.message();
    EXPECT_NE(status.message().find("OpenSSL"), std::string::npos) << status.message();
  }
  auto [own, other] = connected();
  EXPECT_TRUE(send_all(other.get(), "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", soon()).ok());
  EXPECT_EQ(handshake_with(std::move(own), [] {}).code(), ErrorCode::kCorrupt);
  auto [left, right] = connected();
  EXPECT_EQ(handshake_with(std::move(left), [&right = right] { right.reset(); }).code(), ErrorCode::kUnavailable);
}

// A member whose bytes change the keys again and again: with and without asking for an answer, which it does not read.
TEST(SecureSocketFault, AFloodOfKeyUpdatesEndsItsOwnConnectionAlone) {
  const auto server = serve_with_key(kJobKey);
  const auto other = connect(server->endpoint(), kJobKey).value();
  for (const int kind : {SSL_KEY_UPDATE_NOT_REQUESTED, SSL_KEY_UPDATE_REQUESTED}) {
    Fd fd = connect_to(server->endpoint(), soon()).value();
    std::string greeting(handshake::kGreetingBytes, '\0');
    ASSERT_TRUE(receive_all(fd.get(), greeting, soon()).ok());
    Peer member(std::move(fd), place_of(server->endpoint()));
    ::SSL_set_connect_state(member.ssl());
    const Deadline deadline = soon();
    int done = 0;
    while (done != 1 && !deadline.expired()) {
      done = ::SSL_do_handshake(member.ssl());
      ASSERT_TRUE(member.goes_on(done));
    }
    while (server->num_clients() < 2 && !deadline.expired()) {
    }
    while (member.goes_on(done) && !deadline.expired()) {
      if (::SSL_get_key_update_type(member.ssl()) == SSL_KEY_UPDATE_NONE) ::SSL_key_update(member.ssl(), kind);
      done = ::SSL_do_handshake(member.ssl());
    }
    EXPECT_FALSE(deadline.expired()) << "the store still takes the flood";
    EXPECT_TRUE(other->set("key", "1").ok());
  }
}

}  // namespace
}  // namespace lockstep::comm
