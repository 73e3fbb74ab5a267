// A stream is a worker of UCX with one endpoint. What is written goes as active messages, which are numbered. Small
// ones are sent eagerly. Large ones are offered to the reader, which fetches them from the writer's memory into its own
// (rendezvous): without a copy in between where the transport can.
//
// A mutex lets one thread at a time call the library. A thread that waits lets UCX work; when UCX has nothing to do,
// the thread sleeps in poll(). A second thread that waits meanwhile sleeps until the first one has news or leaves.
#include "parallel/ucx.h"

#include <fmt/core.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <fstream>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "base/log.h"
#include "base/sha256.h"
#include "sluice/error.h"

#if SLUICE_UCX
#include "parallel/ucx_library.h"
#endif

namespace sluice {
namespace {

using std::chrono::milliseconds;

#if SLUICE_UCX

using Clock = std::chrono::steady_clock;

constexpr unsigned kMessageId = 1;
constexpr size_t kEager = size_t{64} << 10;        // bytes of a message that is sent without being asked for, at most
constexpr size_t kPiece = size_t{4} << 20;         // bytes of any message, at most
constexpr size_t kMostUnread = size_t{64} << 20;   // bytes of messages that came and were not read
constexpr size_t kMostAddress = size_t{64} << 10;  // bytes
constexpr milliseconds kClosing{2000};
constexpr int kFruitless = 1000;
// What each side sends first over the connection. It is as long as the Hello of servers that use TCP
// (cache/row_message.h), so that either kind can tell that the other one differs.
struct Greeting {
  char magic[8];
  uint32_t version;
  uint32_t copies;  // 1: other processes of its machine can copy its memory
  uint64_t zero;
  Sha256 place;  // equal for processes of one user that share a machine and see each other's numbers
};
static_assert(sizeof(Greeting) == 56);
constexpr char kMagic[8] = {'S', 'L', 'U', 'I', 'C', 'E', 'U', 'X'};
constexpr uint32_t kVersion = 1;

// What each side sends next, followed by the address of its worker.
struct AddressHead {
  uint32_t size;      // of the address
  uint32_t checksum;  // of the address
};

// nullopt: it is not known.
std::optional<Sha256> this_place() {
  std::string place;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), place);
  if (place.empty()) return std::nullopt;
  for (const char* name_space : {"/proc/self/ns/pid", "/proc/self/ns/user"}) {
    std::array<char, 64> id{};
    const ssize_t size = ::readlink(name_space, id.data(), id.size());
    if (size <= 0) return std::nullopt;
    place.append(id.data(), static_cast<size_t>(size));
  }
  return sha256(place + std::to_string(::geteuid()));
}

class UcxStream final : public ByteStream {
 public:
  UcxStream(UcxLibrary& ucx, bool copies, std::unique_ptr<TcpStream> connection)
      : ucx_(ucx),
        copies_(copies),
        connection_(std::move(connection)),
        kick_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}
  ~UcxStream() override {
    if (worker_ != nullptr) destroy_worker();
    ::close(kick_);
  }

  std::string open(milliseconds limit) override {
    constexpr const char* kEnded = "the server ended the connection";
    const std::optional<Sha256> place = this_place();
    Greeting own{.magic = {}, .version = kVersion, .copies = copies_ ? 1U : 0U, .zero = 0, .place = {}};
    Greeting theirs{};
    own.place = place.value_or(Sha256{});
    std::copy_n(kMagic, sizeof kMagic, own.magic);
    if (!connection_->write(std::as_bytes(std::span(&own, 1)), limit)) return kEnded;
    if (!connection_->read(std::as_writable_bytes(std::span(&theirs, 1)), limit)) return kEnded;
    if (!std::equal(kMagic, kMagic + sizeof kMagic, theirs.magic)) {
      return "it does not use UCX: --kv-transfer-backend differs";
    }
    if (theirs.version != kVersion) return "its version of the protocol over UCX differs";
    const UcxLibrary::Reach local =
        copies_ && theirs.copies == 1 ? UcxLibrary::Reach::kCopies : UcxLibrary::Reach::kSharedMemory;
    make_worker(place == theirs.place ? local : UcxLibrary::Reach::kAnywhere);
    if (!send_address(limit)) return kEnded;
    AddressHead head{};
    if (!connection_->read(std::as_writable_bytes(std::span(&head, 1)), limit)) return kEnded;
    if (head.size > kMostAddress) return "its UCX address is too long";
    std::vector<std::byte> address(head.size);
    if (!connection_->read(address, limit)) return kEnded;
    if (checksum(address) != head.checksum) return "its UCX address is damaged";
    if (const ucs_status_t status = connect(address); status != UCS_OK) {
      return fmt::format("UCX cannot reach it: {}", ucx_.status_string(status));
    }
    // UCX connects when both sides use the endpoint; for short messages it does so in part only. Later writes must not
    // wait for that.
    std::array<std::byte, kEager / 4> greeting{};
    if (!write(greeting, limit) || !read(greeting, limit)) return "UCX cannot reach it: no message came";
    return {};
  }

  bool read(std::span<std::byte> bytes, milliseconds silence) override {
    std::unique_lock lock(mutex_);
    while (!bytes.empty()) {
      if (rest_at_ < rest_.size()) {
        const size_t n = std::min(bytes.size(), rest_.size() - rest_at_);
        std::memcpy(bytes.data(), rest_.data() + rest_at_, n);
        rest_at_ += n;
        bytes = bytes.subspan(n);
        continue;
      }
      if (!wait(lock, silence, [this] { return over_ || has_message(); }) || !has_message()) return false;
      if (!take_message(lock, bytes, silence)) return false;
    }
    return true;
  }

  bool write(std::span<const std::byte> bytes, milliseconds silence) override {
    std::unique_lock lock(mutex_);
    for (; !bytes.empty(); bytes = bytes.subspan(std::min(kPiece, bytes.size()))) {
      if (over_ || endpoint_ == nullptr) return false;
      const std::span<const std::byte> piece = bytes.first(std::min(kPiece, bytes.size()));
      Request& request = requests_.emplace_back();
      request.number = sent_++;
      ucp_request_param_t param{};
      param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
      param.flags = piece.size() <= kEager ? UCP_AM_SEND_FLAG_EAGER : UCP_AM_SEND_FLAG_RNDV;
      param.cb.send = [](void*, ucs_status_t status, void* own) { end_request(own, status); };
      param.user_data = &request;
      request.handle = ucx_.am_send(endpoint_, kMessageId, &request.number, sizeof request.number, piece.data(),
                                    piece.size(), &param);
      if (!finish(lock, request, silence)) return false;
    }
    return true;
  }

  bool readable(milliseconds limit) override {
    std::unique_lock lock(mutex_);
    const auto ready = [this] { return over_ || rest_at_ < rest_.size() || has_message(); };
    wait(lock, limit, [&] { return woken_ || ready(); });
    if (ready()) return true;
    woken_ = false;
    return false;
  }

  void wake() override { interrupt(woken_); }

  void shut_down() override {
    connection_->shut_down();
    interrupt(over_);
  }

 private:
  // An operation of the library. It stays in the list until the library has ended it.
  struct Request {
    uint64_t number = 0;  // of the message that is sent
    void* handle = nullptr;
    bool done = false;
    ucs_status_t status = UCS_OK;
  };
  // A message that came: its bytes, or what the library knows it by until it is fetched.
  struct Message {
    std::vector<std::byte> bytes{};
    void* offer = nullptr;
    size_t size = 0;
  };

  static void end_request(void* own, ucs_status_t status) {
    Request& request = *static_cast<Request*>(own);
    request.done = true;
    request.status = status;
  }

  void make_worker(UcxLibrary::Reach reach) {
    ucp_worker_params_t worker{};
    worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;
    ucx_.check(ucx_.worker_create(ucx_.context(reach), &worker, &worker_), "ucp_worker_create");
    ucx_.check(ucx_.worker_get_efd(worker_, &event_), "ucp_worker_get_efd");
    ucp_am_handler_param_t handler{};
    handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                         UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
    handler.id = kMessageId;
    handler.flags = UCP_AM_FLAG_WHOLE_MSG;
    handler.arg = this;
    handler.cb = [](void* self, const void* header, size_t header_size, void* data, size_t size,
                    const ucp_am_recv_param_t* param) {
      const bool offered = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
      return static_cast<UcxStream*>(self)->add_message(header, header_size, data, size, offered);
    };
    ucx_.check(ucx_.worker_set_am_recv_handler(worker_, &handler), "ucp_worker_set_am_recv_handler");
  }

  bool send_address(milliseconds limit) {
    ucp_address_t* address = nullptr;
    size_t size = 0;
    ucx_.check(ucx_.worker_get_address(worker_, &address, &size), "ucp_worker_get_address");
    const std::span bytes(reinterpret_cast<const std::byte*>(address), size);
    const AddressHead head{.size = static_cast<uint32_t>(size), .checksum = checksum(bytes)};
    const bool sent = connection_->write(std::as_bytes(std::span(&head, 1)), limit) && connection_->write(bytes, limit);
    ucx_.worker_release_address(worker_, address);
    return sent;
  }

  ucs_status_t connect(std::span<const std::byte> address) {
    const std::scoped_lock lock(mutex_);
    ucp_ep_params_t params{};
    params.field_mask =
        UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params.address = reinterpret_cast<const ucp_address_t*>(address.data());
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params.err_handler.cb = [](void* self, ucp_ep_h, ucs_status_t) {
      UcxStream& stream = *static_cast<UcxStream*>(self);
      stream.over_ = true;
    };
    params.err_handler.arg = this;
    return ucx_.ep_create(worker_, &params, &endpoint_);
  }

  bool has_message() const { return unread_.contains(next_); }

  // Called by the library. What a peer of another kind could send ends the stream.
  ucs_status_t add_message(const void* header, size_t header_size, void* data, size_t size, bool offered) {
    uint64_t number = 0;
    const size_t held = sizeof(Message) + (offered ? 0 : size);
    if (over_ || header_size != sizeof number || size > (offered ? kPiece : kEager) ||
        unread_bytes_ + held > kMostUnread) {
      over_ = true;
      return UCS_OK;
    }
    std::memcpy(&number, header, sizeof number);
    try {
      const auto* const bytes = static_cast<const std::byte*>(data);
      Message message{.bytes = {}, .offer = offered ? data : nullptr, .size = size};
      if (!offered) message.bytes.assign(bytes, bytes + size);
      if (number < next_ || !unread_.emplace(number, std::move(message)).second) {
        over_ = true;
        return UCS_OK;
      }
    } catch (const std::bad_alloc&) {
      over_ = true;
      return UCS_OK;
    }
    unread_bytes_ += held;
    return offered ? UCS_INPROGRESS : UCS_OK;
  }

  // Puts the next message into `bytes`, or into rest_ if it is longer or was sent eagerly.
  bool take_message(std::unique_lock<std::mutex>& lock, std::span<std::byte>& bytes, milliseconds silence) {
    const auto next = unread_.find(next_);
    Message message = std::move(next->second);
    unread_.erase(next);
    ++next_;
    unread_bytes_ -= sizeof(Message) + message.bytes.size();
    rest_at_ = 0;
    rest_ = std::move(message.bytes);
    if (message.offer == nullptr) return true;
    if (over_) {
      ucx_.am_data_release(worker_, message.offer);
      return false;
    }
    std::span<std::byte> target = bytes;
    if (message.size <= bytes.size()) {
      target = bytes.first(message.size);
      bytes = bytes.subspan(message.size);
    } else {
      rest_.resize(message.size);
      target = rest_;
    }
    Request& request = requests_.emplace_back();
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    param.cb.recv_am = [](void*, ucs_status_t status, size_t, void* own) { end_request(own, status); };
    param.user_data = &request;
    request.handle = ucx_.am_recv_data(worker_, message.offer, target.data(), message.size, &param);
    return finish(lock, request, silence);
  }

  // Waits until the library is done with a request. Returns false if it failed; nothing uses its memory in any case.
  bool finish(std::unique_lock<std::mutex>& lock, Request& request, milliseconds silence) {
    if (UCS_PTR_IS_PTR(request.handle)) {
      if (driven_) kick();
      wait(lock, silence, [&] { return request.done || over_; });
      if (!request.done) {
        close_endpoint();
        wait(lock, kClosing, [&] { return request.done; });
      }
      if (!request.done) {  // the library works no more for this worker, so it does not use the memory either
        log::warning("UCX does not end an operation of a connection that ended");
        stuck_ = true;
        return false;
      }
      ucx_.request_free(request.handle);
    } else {
      request.status = UCS_PTR_STATUS(request.handle);
    }
    const bool ok = request.status == UCS_OK;
    over_ = over_ || !ok;
    requests_.remove_if([&](const Request& other) { return &other == &request; });
    return ok;
  }

  // Returns ready(), when it is true or after `limit`.
  template <class Ready>
  bool wait(std::unique_lock<std::mutex>& lock, milliseconds limit, const Ready& ready) {
    const Clock::time_point until = Clock::now() + limit;
    while (!ready() && worker_ != nullptr && !stuck_ && Clock::now() < until) {
      if (driven_) {
        changed_.wait_until(lock, until);
      } else {
        driven_ = true;
        drive(lock, until);
        driven_ = false;
        changed_.notify_all();
      }
    }
    return ready();
  }

  // Lets the library work, or sleeps until it has something to do.
  void drive(std::unique_lock<std::mutex>& lock, Clock::time_point until) {
    if (ucx_.worker_progress(worker_) != 0) {
      fruitless_ = 0;
      return;
    }
    milliseconds limit = std::chrono::ceil<milliseconds>(until - Clock::now());
    int event = event_;
    const ucs_status_t armed = ucx_.worker_arm(worker_);
    if (armed == UCS_ERR_BUSY) {
      // Most often there is work at once. If there is none, the other side has no room, perhaps because it was stopped.
      limit = milliseconds(++fruitless_ < kFruitless ? 0 : 1);
      event = -1;
    } else if (armed == UCS_OK) {
      fruitless_ = 0;
    } else {
      over_ = true;
      return;
    }
    pollfd watched[] = {{.fd = event, .events = POLLIN, .revents = 0},
                        {.fd = kick_, .events = POLLIN, .revents = 0},
                        {.fd = over_ ? -1 : connection_->descriptor(), .events = POLLIN, .revents = 0}};
    lock.unlock();
    ::poll(watched, std::size(watched), static_cast<int>(std::clamp<int64_t>(limit.count(), 0, 1 << 30)));
    lock.lock();
    eventfd_t count = 0;
    if (watched[1].revents != 0) ::eventfd_read(kick_, &count);
    if (watched[2].revents == 0) return;
    // The other process ended the stream. What came before can still be read.
    while (!over_ && ucx_.worker_progress(worker_) != 0) {
    }
    over_ = true;
  }

  void kick() { ::eventfd_write(kick_, 1); }

  void interrupt(bool& flag) {
    const std::scoped_lock lock(mutex_);
    flag = true;
    changed_.notify_all();
    kick();
  }

  void close_endpoint() {
    over_ = true;
    if (endpoint_ == nullptr) return;
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_EP_CLOSE_FLAG_FORCE;
    closing_ = ucx_.ep_close(std::exchange(endpoint_, nullptr), &param);
  }

  void destroy_worker() {
    std::unique_lock lock(mutex_);
    for (const auto& [number, message] : unread_) {
      if (message.offer != nullptr) ucx_.am_data_release(worker_, message.offer);
    }
    close_endpoint();
    if (UCS_PTR_IS_PTR(closing_)) {
      wait(lock, kClosing, [this] { return ucx_.request_check_status(closing_) != UCS_INPROGRESS; });
      ucx_.request_free(closing_);
    }
    ucx_.worker_destroy(worker_);
  }

  UcxLibrary& ucx_;
  const bool copies_;  // other processes can copy what is written
  const std::unique_ptr<TcpStream> connection_;
  const int kick_;  // ends the sleep of the thread that drives
  ucp_worker_h worker_ = nullptr;
  int event_ = -1;  // the worker's
  std::mutex mutex_;
  std::condition_variable changed_;
  // Under the mutex:
  ucp_ep_h endpoint_ = nullptr;
  void* closing_ = nullptr;
  bool driven_ = false;  // a thread lets the library work
  bool over_ = false;    // nothing comes or goes any more
  int fruitless_ = 0;    // calls of the library that found nothing to do and something to wait for, in a row
  bool stuck_ = false;   // the library must not work any more
  bool woken_ = false;
  std::list<Request> requests_;
  uint64_t sent_ = 0, next_ = 0;  // numbers of messages
  std::map<uint64_t, Message> unread_;
  size_t unread_bytes_ = 0;
  std::vector<std::byte> rest_;  // of a message, from rest_at_ on
  size_t rest_at_ = 0;
};

// As seen from another process of this user.
bool can_be_copied(std::span<const std::byte> memory) {
  if (memory.empty()) return true;
  std::byte copy{};
  const iovec local{.iov_base = &copy, .iov_len = 1};
  const iovec remote{.iov_base = const_cast<std::byte*>(memory.data()), .iov_len = 1};
  return ::process_vm_readv(::getpid(), &local, 1, &remote, 1, 0) == 1;
}

class OpenUcx final : public Ucx {
 public:
  explicit OpenUcx(bool copies) : copies_(copies) {}

  std::unique_ptr<ByteStream> make_stream(std::unique_ptr<TcpStream> connection) override {
    return std::make_unique<UcxStream>(ucx_, copies_, std::move(connection));
  }

 private:
  UcxLibrary ucx_;
  const bool copies_;
};

#endif

}  // namespace

void refuse_ucx(const std::string& why) {
  throw Error(ErrorCode::kInvalidRequest, "--kv-transfer-backend ucx: " + why, "kv_transfer_backend", "invalid_option");
}

std::unique_ptr<Ucx> Ucx::load([[maybe_unused]] std::span<const std::byte> memory) {
#if SLUICE_UCX
  return std::make_unique<OpenUcx>(can_be_copied(memory));
#else
  refuse_ucx("this program was built without UCX (install libucx-dev and build it again, or use tcp)");
#endif
}

}  // namespace sluice
