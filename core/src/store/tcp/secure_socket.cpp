#include "store/tcp/secure_socket.h"

#include <fmt/format.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/no_forks.h"
#include "base/poll.h"
#include "lockstep/base/fork.h"
#include "store/tcp/handshake.h"

namespace lockstep::comm {
namespace secure_socket_detail {

struct FreeSsl {
  void operator()(SSL* ssl) const { ::SSL_free(ssl); }
  void operator()(SSL_CTX* context) const { ::SSL_CTX_free(context); }
  void operator()(SSL_SESSION* session) const { ::SSL_SESSION_free(session); }
  void operator()(BIO_METHOD* method) const { ::BIO_meth_free(method); }
};
template <typename T>
using Owned = std::unique_ptr<T, FreeSsl>;

}  // namespace secure_socket_detail

using secure_socket_detail::Owned;

struct SecureSocket::State {
  Fd fd;
  std::string key;  // wiped after the handshake
  std::vector<std::string> places;
  std::string early;          // read from the socket, not yet by OpenSSL
  bool blocked = false;       // the last call has met a socket that was not ready
  bool is_gone = false;       // the other side has closed
  bool is_proven = false;     // the handshake is done
  bool is_renewed = false;    // the other side has gone on with handshakes after that
  bool more_follows = false;  // another record, so the kernel need not wake the other side for this one
  int reason = 0;             // of OpenSSL's last error
  Owned<SSL> ssl = nullptr;

  State(Fd socket, std::string job_key, std::vector<std::string> own_places, std::string hello)
      : fd(std::move(socket)), key(std::move(job_key)), places(std::move(own_places)), early(std::move(hello)) {}
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    handshake::wipe(key);
    const NoForks during_call;
    ssl.reset();
  }

  // OpenSSL's own functions for sockets may raise SIGPIPE.
  static int read(BIO* bio, char* data, int bytes);
  static int write(BIO* bio, const char* data, int bytes);
  int blocks(BIO* bio, int flag);
  static void see_message(int is_sent, int version, int type, const void* bytes, std::size_t count, SSL* ssl,
                          void* context);
  static int use_session(SSL* ssl, const EVP_MD* digest, const unsigned char** identity, std::size_t* bytes,
                         SSL_SESSION** session);
  static int find_session(SSL* ssl, const unsigned char* identity, std::size_t bytes, SSL_SESSION** session);
  // What OpenSSL is asked to do.
  template <typename Call>
  int run(Call call);
};

namespace {

// What all connections of a process share.
struct Tls {
  Owned<BIO_METHOD> method;
  Owned<SSL_CTX> context;
  bool ok = false;
};

Status tls_failed() {
  std::array<char, 256> text{};
  ::ERR_error_string_n(::ERR_get_error(), text.data(), text.size());
  ::ERR_clear_error();
  return {ErrorCode::kIo, fmt::format("OpenSSL cannot make a TLS 1.3 connection: {}", text.data())};
}

// The key of one connection as TLS has it: a session that both sides seem to have had before.
SSL_SESSION* session_of(SSL* ssl, const std::string& key, std::string_view place) {
  constexpr std::array<unsigned char, 2> kAes128GcmSha256{0x13, 0x01};
  std::string secret = handshake::tls_key(key, place);
  Owned<SSL_SESSION> session(::SSL_SESSION_new());
  const SSL_CIPHER* const cipher = ::SSL_CIPHER_find(ssl, kAes128GcmSha256.data());
  const bool made = session != nullptr && cipher != nullptr &&
                    ::SSL_SESSION_set1_master_key(session.get(), reinterpret_cast<const unsigned char*>(secret.data()),
                                                  secret.size()) == 1 &&
                    ::SSL_SESSION_set_cipher(session.get(), cipher) == 1 &&
                    ::SSL_SESSION_set_protocol_version(session.get(), TLS1_3_VERSION) == 1;
  handshake::wipe(secret);
  return made ? session.release() : nullptr;
}

}  // namespace

int SecureSocket::State::blocks(BIO* bio, int flag) {
  ::BIO_set_flags(bio, flag | BIO_FLAGS_SHOULD_RETRY);
  blocked = true;
  return -1;
}

int SecureSocket::State::read(BIO* bio, char* data, int bytes) {
  State& state = *static_cast<State*>(::BIO_get_data(bio));
  ::BIO_clear_retry_flags(bio);
  if (state.is_renewed) return -1;
  if (!state.early.empty()) {
    const std::size_t count = std::min(state.early.size(), static_cast<std::size_t>(bytes));
    std::memcpy(data, state.early.data(), count);
    state.early.erase(0, count);
    return static_cast<int>(count);
  }
  while (true) {
    const ssize_t count = ::recv(state.fd.get(), data, static_cast<std::size_t>(bytes), 0);
    if (count > 0) return static_cast<int>(count);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return state.blocks(bio, BIO_FLAGS_READ);
    state.is_gone = true;
    return -1;
  }
}

int SecureSocket::State::write(BIO* bio, const char* data, int bytes) {
  State& state = *static_cast<State*>(::BIO_get_data(bio));
  ::BIO_clear_retry_flags(bio);
  while (true) {
    const int flags = MSG_NOSIGNAL | (state.more_follows ? MSG_MORE : 0);
    const ssize_t count = ::send(state.fd.get(), data, static_cast<std::size_t>(bytes), flags);
    if (count >= 0) return static_cast<int>(count);
    if (errno == EINTR) continue;
    if (errno == EAGAIN) return state.blocks(bio, BIO_FLAGS_WRITE);
    state.is_gone = true;
    return -1;
  }
}

// Lockstep's sides never change their keys or send tickets. A flood of either would keep OpenSSL in one call for as
// long as it lasts, and its answers would fill the socket of a peer that does not read.
void SecureSocket::State::see_message(int is_sent, int /*version*/, int type, const void* /*bytes*/,
                                      std::size_t /*count*/, SSL* ssl, void* /*context*/) {
  State& state = *static_cast<State*>(SSL_get_app_data(ssl));
  if (is_sent == 0 && type == SSL3_RT_HANDSHAKE && state.is_proven) state.is_renewed = true;
}

int SecureSocket::State::use_session(SSL* ssl, const EVP_MD* /*digest*/, const unsigned char** identity,
                                     std::size_t* bytes, SSL_SESSION** session) {
  const State& state = *static_cast<State*>(SSL_get_app_data(ssl));
  const std::string& place = state.places.front();
  *identity = reinterpret_cast<const unsigned char*>(place.data());
  *bytes = place.size();
  *session = session_of(ssl, state.key, place);
  return *session != nullptr ? 1 : 0;
}

int SecureSocket::State::find_session(SSL* ssl, const unsigned char* identity, std::size_t bytes,
                                      SSL_SESSION** session) {
  const State& state = *static_cast<State*>(SSL_get_app_data(ssl));
  const std::string_view place(reinterpret_cast<const char*>(identity), bytes);
  const bool is_ours = std::find(state.places.begin(), state.places.end(), place) != state.places.end();
  *session = is_ours ? session_of(ssl, state.key, place) : nullptr;
  return *session != nullptr ? 1 : 0;  // 0: OpenSSL ends the handshake by an alert (internal_error)
}

template <typename Call>
int SecureSocket::State::run(Call call) {
  const NoForks during_call;
  blocked = false;
  const int done = call(ssl.get());
  if (done <= 0 && !blocked) {
    reason = ERR_GET_REASON(::ERR_peek_last_error());
    ::ERR_clear_error();  // it is the thread's
  }
  return done;
}

SecureSocket::SecureSocket() = default;
SecureSocket::~SecureSocket() = default;
SecureSocket::SecureSocket(SecureSocket&& other) noexcept = default;
SecureSocket& SecureSocket::operator=(SecureSocket&& other) noexcept = default;
SecureSocket::SecureSocket(std::unique_ptr<State> state) : state_(std::move(state)) {}

int SecureSocket::fd() const {
  return state_ == nullptr ? -1 : state_->fd.get();
}

namespace {

using SeeMessage = void (*)(int, int, int, const void*, std::size_t, SSL*, void*);

Tls make_tls(int (*read)(BIO*, char*, int), int (*write)(BIO*, const char*, int), SeeMessage see,
             SSL_psk_use_session_cb_func use, SSL_psk_find_session_cb_func find) {
  handshake::keep_openssl_at_exit();
  Tls tls;
  tls.method.reset(::BIO_meth_new(BIO_TYPE_SOURCE_SINK, "a socket"));
  tls.context.reset(::SSL_CTX_new(::TLS_method()));
  if (tls.method == nullptr || tls.context == nullptr) return tls;
  ::BIO_meth_set_read(tls.method.get(), read);
  ::BIO_meth_set_write(tls.method.get(), write);
  ::BIO_meth_set_ctrl(tls.method.get(), [](BIO* /*bio*/, int what, long /*number*/, void* /*data*/) -> long {
    return what == BIO_CTRL_FLUSH ? 1 : 0;
  });
  SSL_CTX* const context = tls.context.get();
  ::SSL_CTX_clear_options(context, SSL_OP_ENABLE_MIDDLEBOX_COMPAT);
  ::SSL_CTX_set_options(context, SSL_OP_NO_TICKET);
  ::SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  // Idle connections keep no buffers.
  SSL_CTX_set_mode(context,
                   SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  ::SSL_CTX_set_msg_callback(context, see);
  ::SSL_CTX_set_psk_use_session_callback(context, use);
  ::SSL_CTX_set_psk_find_session_callback(context, find);
  tls.ok = SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1 &&
           SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) == 1 &&
           ::SSL_CTX_set_ciphersuites(context, TLS1_3_RFC_AES_128_GCM_SHA256) == 1 &&
           SSL_CTX_set1_groups_list(context, "X25519:P-256") == 1 && ::SSL_CTX_set_num_tickets(context, 0) == 1;
  return tls;
}

}  // namespace

Result<SecureSocket> SecureSocket::client(Fd fd, std::string key, std::string place) {
  LOCKSTEP_ASSIGN_OR_RETURN(SecureSocket socket, server(std::move(fd), std::move(key), {std::move(place)}, {}));
  ::SSL_set_connect_state(socket.state_->ssl.get());
  // A server that proves no key shows a certificate: none is trusted.
  ::SSL_set_verify(socket.state_->ssl.get(), SSL_VERIFY_PEER, nullptr);
  return socket;
}

Result<SecureSocket> SecureSocket::server(Fd fd, std::string key, std::vector<std::string> places, std::string hello) {
  struct Shared {
    Tls tls = make_tls(&State::read, &State::write, &State::see_message, &State::use_session, &State::find_session);
  };
  static constinit OfProcess<Shared> shared;
  auto state = std::make_unique<State>(std::move(fd), std::move(key), std::move(places), std::move(hello));
  const NoForks during_calls;
  const Tls& tls = shared.get().tls;
  if (!tls.ok) return tls_failed();
  state->ssl.reset(::SSL_new(tls.context.get()));
  BIO* const bio = state->ssl == nullptr ? nullptr : ::BIO_new(tls.method.get());
  if (bio == nullptr) return tls_failed();
  ::BIO_set_data(bio, state.get());
  ::BIO_set_init(bio, 1);
  ::SSL_set_bio(state->ssl.get(), bio, bio);
  SSL_set_app_data(state->ssl.get(), state.get());
  ::SSL_set_accept_state(state->ssl.get());
  return SecureSocket(std::move(state));
}

namespace {

Status gone() {
  return {ErrorCode::kUnavailable, "the other side closed the connection"};
}

std::string reason_text(int reason) {
  const NoForks during_call;
  const char* const text = ::ERR_reason_error_string(ERR_PACK(ERR_LIB_SSL, 0, reason));
  return text == nullptr ? fmt::format("reason {}", reason) : text;
}

// What OpenSSL's reason for the end of a handshake means. An alert of the other side is a reason too.
Status failed_handshake(int reason) {
  // A store without a key for the place sends this alert, and so does an OpenSSL that fails within.
  constexpr int kNoPskOfThisPlace = SSL_AD_REASON_OFFSET + SSL_AD_INTERNAL_ERROR;
  switch (reason) {
    case SSL_AD_REASON_OFFSET + SSL_AD_ILLEGAL_PARAMETER:  // the proof in the hello
    case SSL_AD_REASON_OFFSET + SSL_AD_DECRYPT_ERROR:
    case SSL_AD_REASON_OFFSET + SSL_AD_BAD_RECORD_MAC:
    case SSL_R_BINDER_DOES_NOT_VERIFY:
    case SSL_R_CERTIFICATE_VERIFY_FAILED:  // a certificate takes the place of a proof
    case SSL_R_DECRYPTION_FAILED_OR_BAD_RECORD_MAC:
    case SSL_R_DIGEST_CHECK_FAILED: return {ErrorCode::kPermission, "the two sides do not know the same key"};
    case kNoPskOfThisPlace:
      return {ErrorCode::kMismatch, "the other side is not at the address of this connection, or its OpenSSL failed"};
    case SSL_R_UNSUPPORTED_PROTOCOL: break;
    default:
      if (reason > SSL_AD_REASON_OFFSET) break;
      return {ErrorCode::kCorrupt,
              fmt::format("the bytes that arrive are not those of TLS 1.3 ({})", reason_text(reason))};
  }
  return {ErrorCode::kUnsupported,
          fmt::format("the other side does not take TLS 1.3 as this one offers it ({}): use the same release of "
                      "Lockstep, and releases of OpenSSL that know TLS_AES_128_GCM_SHA256 and X25519 or P-256, on all "
                      "machines",
                      reason_text(reason))};
}

}  // namespace

Result<bool> SecureSocket::shake_hands() {
  const int done = state_->run(::SSL_do_handshake);
  if (done == 1 && ::SSL_session_reused(state_->ssl.get()) == 1) {
    handshake::wipe(state_->key);
    state_->is_proven = true;
    return true;
  }
  if (done != 1 && state_->blocked) return false;
  if (done != 1 && state_->is_gone) return gone();
  return failed_handshake(done == 1 ? SSL_R_CERTIFICATE_VERIFY_FAILED : state_->reason);
}

Status SecureSocket::wait(Deadline deadline) const {
  const short events = SSL_want_write(state_->ssl.get()) ? POLLOUT : POLLIN;
  LOCKSTEP_ASSIGN_OR_RETURN(const bool ready, poll_until(fd(), events, deadline));
  return ready ? Status() : Status(ErrorCode::kTimeout, "no answer in time");
}

Status SecureSocket::shake_hands(Deadline deadline) {
  while (true) {
    LOCKSTEP_ASSIGN_OR_RETURN(const bool done, shake_hands());
    if (done) return {};
    LOCKSTEP_RETURN_IF_ERROR(wait(deadline));
  }
}

Result<std::size_t> SecureSocket::read_some(std::span<char> room) {
  std::size_t count = 0;
  const int done = state_->run([&](SSL* ssl) { return ::SSL_read_ex(ssl, room.data(), room.size(), &count); });
  if (state_->is_renewed) return Status(ErrorCode::kCorrupt, "the other side began another handshake");
  if (done == 1) return count;
  if (state_->blocked) return std::size_t{0};
  const bool said_goodbye = (::SSL_get_shutdown(state_->ssl.get()) & SSL_RECEIVED_SHUTDOWN) != 0;
  if (state_->is_gone || said_goodbye) return gone();
  return Status(ErrorCode::kCorrupt, "bytes arrived on an encrypted connection that its other side has not sent");
}

Result<std::size_t> SecureSocket::write_some(std::string_view bytes) {
  std::size_t count = 0;
  if (bytes.empty()) return count;
  state_->more_follows = bytes.size() > SSL3_RT_MAX_PLAIN_LENGTH;
  if (state_->run([&](SSL* ssl) { return ::SSL_write_ex(ssl, bytes.data(), bytes.size(), &count); }) == 1) return count;
  if (state_->blocked) return std::size_t{0};
  return gone();
}

Status SecureSocket::send_all(std::string_view bytes, Deadline deadline) {
  while (!bytes.empty()) {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::size_t count, write_some(bytes));
    bytes.remove_prefix(count);
    if (count == 0) LOCKSTEP_RETURN_IF_ERROR(wait(deadline));
  }
  return {};
}

Status SecureSocket::receive_all(std::string& bytes, Deadline deadline) {
  std::span<char> rest(bytes);
  while (!rest.empty()) {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::size_t count, read_some(rest));
    rest = rest.subspan(count);
    if (count == 0) LOCKSTEP_RETURN_IF_ERROR(wait(deadline));
  }
  return {};
}

}  // namespace lockstep::comm
