// Sockets, epoll and its relatives in memory, behind the C library's functions. Connections keep the order of bytes and
// nothing else: any read or write may take a part, and the end of a connection may come at any time.
#include "simulation/machine/network.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/uio.h>

#include <cstdarg>
#include <cstring>
#include <map>

#include "simulation/machine/calls.h"
#include "simulation/machine/machine.h"
#include "simulation/machine/system.h"

namespace sluice::simulation {
namespace {

constexpr int kFirstDescriptor = 1 << 20;  // the kernel's are smaller

struct Network {
  std::vector<std::shared_ptr<File>> files;  // by descriptor
  std::map<uint16_t, Listener*> listeners;
  uint16_t next_port = 20000;

  int add(std::shared_ptr<File> file) {
    ++file->descriptors;
    const auto free = std::find(files.begin(), files.end(), nullptr);
    const auto place = free - files.begin();
    if (free == files.end()) {
      files.push_back(std::move(file));
    } else {
      *free = std::move(file);
    }
    return kFirstDescriptor + static_cast<int>(place);
  }
};

Network& network() {
  alignas(Network) static std::byte memory[sizeof(Network)];
  static bool made = false;
  auto* one = reinterpret_cast<Network*>(memory);
  if (!made) new (memory) Network;
  made = true;
  return *one;
}

Machine& machine() { return Machine::get(); }

std::shared_ptr<File> find(int fd) {
  const auto place = static_cast<size_t>(fd - kFirstDescriptor);
  return fd < kFirstDescriptor || place >= network().files.size() ? nullptr : network().files[place];
}

template <class T>
std::shared_ptr<T> find_as(int fd) {
  auto found = std::dynamic_pointer_cast<T>(find(fd));
  if (found == nullptr) errno = EBADF;
  return found;
}

int fail(int error) {
  errno = error;
  return -1;
}

// A part of what could be transferred, now and then.
size_t part(size_t size) {
  if (size < 2 || !machine().chance(machine().weather().short_transfer)) return size;
  return static_cast<size_t>(machine().between(1, static_cast<int64_t>(size)));
}

void put_address(const Address& from, sockaddr* to, socklen_t* size) {
  if (to == nullptr || size == nullptr) return;
  sockaddr_in in{};
  in.sin_family = AF_INET;
  in.sin_port = htons(from.port);
  in.sin_addr.s_addr = htonl(from.ip);
  std::memcpy(to, &in, std::min<size_t>(*size, sizeof in));
  *size = sizeof in;
}

Address get_address(const sockaddr* from) {
  sockaddr_in in{};
  std::memcpy(&in, from, sizeof in);
  return {ntohl(in.sin_addr.s_addr), ntohs(in.sin_port)};
}

// Waits until the file changes. False: it must not wait.
bool wait_for(File& file, bool blocking) {
  if (!blocking) return false;
  machine().wait(&file, "a socket");
  return true;
}

ssize_t receive(const std::shared_ptr<Socket>& socket, char* data, size_t size, int flags) {
  const bool blocking = socket->blocking && (flags & MSG_DONTWAIT) == 0;
  for (;;) {
    if (!socket->received.empty()) {
      const size_t n = part(std::min(size, socket->received.size()));
      std::memcpy(data, socket->received.data(), n);
      socket->received.erase(0, n);
      machine().note(data, n);
      if (socket->peer) socket->peer->changed();
      return static_cast<ssize_t>(n);
    }
    if (std::exchange(socket->reset, false)) {
      socket->ended = true;
      return fail(ECONNRESET);
    }
    if (socket->ended || size == 0) return 0;
    if (!socket->peer) return fail(ENOTCONN);
    if (!wait_for(*socket, blocking)) return fail(EAGAIN);
  }
}

ssize_t transmit(const std::shared_ptr<Socket>& socket, const char* data, size_t size, int flags) {
  const bool blocking = socket->blocking && (flags & MSG_DONTWAIT) == 0;
  for (;;) {
    if (socket->reset) return fail(ECONNRESET);
    if (socket->finished || !socket->peer) return fail(EPIPE);
    Socket& peer = *socket->peer;
    if (peer.closed) {  // the first bytes for nobody are accepted, and answered by a reset
      socket->reset = true;
      socket->changed();
      return static_cast<ssize_t>(size);
    }
    if (peer.room() > 0) {
      const size_t n = part(std::min(size, peer.room()));
      peer.received.append(data, n);
      peer.changed();
      return static_cast<ssize_t>(n);
    }
    if (!wait_for(*socket, blocking)) return fail(EAGAIN);
  }
}

template <class Call>
ssize_t transfer(int fd, Call&& call) {
  machine().yield();
  if (refuses_call(ECONNRESET)) return -1;
  const Inside inside;
  const auto socket = find_as<Socket>(fd);
  return socket == nullptr ? -1 : call(socket);
}

void close_file(const std::shared_ptr<File>& file) {
  if (--file->descriptors > 0) return;
  for (Epoll* epoll : std::exchange(file->watchers, {})) epoll->forget(file.get());
  file->close();
}

}  // namespace

int open_files() {
  const auto& files = network().files;
  return static_cast<int>(files.size() - static_cast<size_t>(std::count(files.begin(), files.end(), nullptr)));
}

void File::changed() {
  machine().wake_all(this);
  for (Epoll* epoll : watchers) {
    for (Epoll::Watch& watch : epoll->watches) watch.pending |= watch.file.get() == this;
    machine().wake_all(epoll);
  }
}

uint32_t Socket::ready() const {
  uint32_t events = 0;
  if (!received.empty() || ended || reset) events |= EPOLLIN;
  if (ended || reset) events |= EPOLLRDHUP;
  if (reset) events |= EPOLLERR | EPOLLHUP;
  if (ended && finished) events |= EPOLLHUP;
  if (reset || (peer && (peer->closed || peer->room() > 0))) events |= EPOLLOUT;
  return events;
}

void Socket::close() {
  closed = true;
  if (!peer) return;
  Socket& other = *peer;
  if (abortive || !received.empty()) {
    other.reset = true;
    // The kernel may still hand out what had arrived before.
    if (machine().chance(500'000)) other.received.clear();
  } else {
    other.ended = true;
  }
  received.clear();
  other.changed();
  if (other.closed) {  // they keep each other
    other.peer = nullptr;
    peer = nullptr;
  }
}

void Listener::close() {
  network().listeners.erase(local.port);
  for (const auto& socket : std::exchange(queue, {})) socket->close();
}

uint32_t Counter::ready() const { return value > 0 || expiry <= machine().now() ? uint32_t{EPOLLIN} : 0u; }

void Epoll::close() {
  for (const Watch& watch : watches) std::erase(watch.file->watchers, this);
  watches.clear();
}

void Epoll::forget(const File* file) {
  std::erase_if(watches, [&](const Watch& watch) { return watch.file.get() == file; });
}

int64_t Epoll::next_expiry() const {
  int64_t next = INT64_MAX;
  for (const Watch& watch : watches) {
    if (const auto* timer = dynamic_cast<const Counter*>(watch.file.get())) next = std::min(next, timer->expiry);
  }
  return next;
}

int Epoll::collect(epoll_event* out, int most) {
  int count = 0;
  if (watches.empty()) return 0;
  const size_t first = static_cast<size_t>(machine().random() % watches.size());  // no order is promised
  for (size_t i = 0; i < watches.size() && count < most; ++i) {
    Watch& watch = watches[(first + i) % watches.size()];
    const uint32_t events = watch.file->ready() & (watch.events | EPOLLERR | EPOLLHUP);
    const bool edge = (watch.events & EPOLLET) != 0;
    if (events == 0 || (edge && !watch.pending)) continue;
    watch.pending = false;
    out[count].events = events;
    out[count++].data.u64 = watch.data;
  }
  return count;
}

}  // namespace sluice::simulation

using namespace sluice::simulation;

extern "C" {

int socket(int, int type, int) {
  if (refuses_call(EMFILE)) return -1;
  const Inside inside;
  auto file = std::make_shared<Socket>();
  file->blocking = (type & SOCK_NONBLOCK) == 0;
  return network().add(std::move(file));
}

int bind(int fd, const sockaddr* address, socklen_t) {
  const Inside inside;
  const auto socket = find_as<Socket>(fd);
  if (socket == nullptr) return -1;
  socket->local = get_address(address);
  return 0;
}

int listen(int fd, int) {
  if (refuses_call(EADDRINUSE)) return -1;
  const Inside inside;
  const auto socket = find_as<Socket>(fd);
  if (socket == nullptr) return -1;
  if (socket->local.port == 0) socket->local.port = network().next_port++;
  if (network().listeners.contains(socket->local.port)) return fail(EADDRINUSE);
  auto listener = std::make_shared<Listener>();
  listener->local = socket->local;
  listener->blocking = socket->blocking;
  listener->descriptors = 1;
  network().listeners[socket->local.port] = listener.get();
  // The descriptor changes what it stands for. An epoll that watches the socket goes on with the listener.
  for (Epoll* epoll : socket->watchers) {
    for (Epoll::Watch& watch : epoll->watches) {
      if (watch.file == socket) watch.file = listener;
    }
  }
  listener->watchers = socket->watchers;
  network().files[static_cast<size_t>(fd - kFirstDescriptor)] = listener;
  return 0;
}

int accept4(int fd, sockaddr* address, socklen_t* size, int flags) {
  machine().yield();
  if (refuses_call(EMFILE)) return -1;
  const Inside inside;
  const auto listener = find_as<Listener>(fd);
  if (listener == nullptr) return -1;
  while (listener->queue.empty()) {
    if (!wait_for(*listener, listener->blocking)) return fail(EAGAIN);
  }
  if (machine().chance(machine().weather().no_descriptor)) return fail(EMFILE);
  auto socket = listener->queue.front();
  listener->queue.pop_front();
  put_address(socket->remote, address, size);
  socket->blocking = (flags & SOCK_NONBLOCK) == 0;
  return network().add(std::move(socket));
}
int accept(int fd, sockaddr* address, socklen_t* size) { return accept4(fd, address, size, 0); }

int connect(int fd, const sockaddr* address, socklen_t) {
  machine().yield();
  const Inside inside;
  const auto socket = find_as<Socket>(fd);
  if (socket == nullptr) return -1;
  const auto found = network().listeners.find(get_address(address).port);
  if (found == network().listeners.end()) return fail(ECONNREFUSED);
  auto other = std::make_shared<Socket>();
  if (socket->local.ip == 0) socket->local.ip = machine().current().address;
  socket->local.port = network().next_port++;
  socket->remote = other->local = found->second->local;
  other->remote = socket->local;
  other->capacity = static_cast<size_t>(machine().between(1 << 10, 128 << 10));
  socket->peer = other;
  other->peer = socket;
  found->second->queue.push_back(std::move(other));
  found->second->changed();
  return 0;
}

int getsockname(int fd, sockaddr* address, socklen_t* size) noexcept {
  if (const auto file = find(fd)) {
    if (const auto* socket = dynamic_cast<const Socket*>(file.get())) put_address(socket->local, address, size);
    if (const auto* socket = dynamic_cast<const Listener*>(file.get())) put_address(socket->local, address, size);
    return 0;
  }
  return fail(EBADF);
}

int getpeername(int fd, sockaddr* address, socklen_t* size) noexcept {
  const auto socket = find_as<Socket>(fd);
  if (socket == nullptr) return -1;
  if (!socket->peer || socket->reset) return fail(ENOTCONN);
  put_address(socket->remote, address, size);
  return 0;
}

int setsockopt(int fd, int level, int option, const void* value, socklen_t) noexcept {
  const auto socket = std::dynamic_pointer_cast<Socket>(find(fd));
  if (socket == nullptr || level != SOL_SOCKET) return 0;
  if (option == SO_RCVBUF) socket->capacity = static_cast<size_t>(*static_cast<const int*>(value));
  if (option == SO_LINGER) {
    const auto* time = static_cast<const linger*>(value);
    socket->abortive = time->l_onoff != 0 && time->l_linger == 0;
  }
  return 0;
}

int getsockopt(int, int, int, void* value, socklen_t* size) noexcept {
  std::memset(value, 0, *size);
  return 0;
}

ssize_t recv(int fd, void* data, size_t size, int flags) {
  return transfer(fd, [&](auto& socket) { return receive(socket, static_cast<char*>(data), size, flags); });
}
ssize_t send(int fd, const void* data, size_t size, int flags) {
  return transfer(fd, [&](auto& socket) { return transmit(socket, static_cast<const char*>(data), size, flags); });
}
ssize_t recvmsg(int fd, msghdr* message, int flags) {
  const iovec& first = message->msg_iov[0];
  return recv(fd, first.iov_base, first.iov_len, flags);
}
ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  const iovec& first = message->msg_iov[0];
  return send(fd, first.iov_base, first.iov_len, flags);
}

ssize_t read(int fd, void* data, size_t size) {
  if (fd < kFirstDescriptor && refuses_call(EIO)) return -1;
  if (fd < kFirstDescriptor) return system_call(SYS_read, fd, reinterpret_cast<long>(data), static_cast<long>(size));
  if (const auto counter = std::dynamic_pointer_cast<Counter>(find(fd))) {
    if (counter->value == 0) return fail(EAGAIN);
    const uint64_t value = std::exchange(counter->value, 0);
    std::memcpy(data, &value, sizeof value);
    return sizeof value;
  }
  return recv(fd, data, size, 0);
}

ssize_t write(int fd, const void* data, size_t size) {
  if (fd < kFirstDescriptor && refuses_call(ENOSPC)) return -1;
  if (fd < kFirstDescriptor) return system_call(SYS_write, fd, reinterpret_cast<long>(data), static_cast<long>(size));
  if (const auto counter = std::dynamic_pointer_cast<Counter>(find(fd))) {
    const Inside inside;
    uint64_t more = 0;
    std::memcpy(&more, data, sizeof more);
    counter->value += more;
    counter->changed();
    return sizeof more;
  }
  return send(fd, data, size, 0);
}

int shutdown(int fd, int how) noexcept {
  const Inside inside;
  const auto socket = find_as<Socket>(fd);
  if (socket == nullptr) return -1;
  if (!socket->peer || socket->reset) return fail(ENOTCONN);
  if (how == SHUT_RD || socket->finished) return 0;
  socket->finished = true;
  socket->peer->ended = true;
  socket->peer->changed();
  socket->changed();
  return 0;
}

int close(int fd) {
  if (fd < kFirstDescriptor) return static_cast<int>(system_call(SYS_close, fd));
  machine().yield();
  const Inside inside;
  const auto file = find(fd);
  if (file == nullptr) return fail(EBADF);
  network().files[static_cast<size_t>(fd - kFirstDescriptor)] = nullptr;
  close_file(file);
  return 0;
}

int ioctl(int fd, unsigned long request, ...) noexcept {
  va_list list;
  va_start(list, request);
  void* argument = va_arg(list, void*);
  va_end(list);
  if (fd < kFirstDescriptor) {
    return static_cast<int>(system_call(SYS_ioctl, fd, static_cast<long>(request), reinterpret_cast<long>(argument)));
  }
  const auto file = find(fd);
  if (file == nullptr) return fail(EBADF);
  if (request == FIONBIO) file->blocking = *static_cast<int*>(argument) == 0;
  return 0;
}

int fcntl(int fd, int command, ...) {
  va_list list;
  va_start(list, command);
  const long argument = va_arg(list, long);
  va_end(list);
  const bool makes_one = command == F_DUPFD || command == F_DUPFD_CLOEXEC;
  if (makes_one && refuses_call(EMFILE)) return -1;
  if (fd < kFirstDescriptor) return static_cast<int>(system_call(SYS_fcntl, fd, command, argument));
  const Inside inside;
  const auto file = find(fd);
  if (file == nullptr) return fail(EBADF);
  switch (command) {
    case F_GETFL:
      return file->blocking ? 0 : O_NONBLOCK;
    case F_SETFL:
      file->blocking = (argument & O_NONBLOCK) == 0;
      return 0;
    case F_DUPFD:
    case F_DUPFD_CLOEXEC:
      return network().add(file);
    default:
      return 0;
  }
}

int poll(pollfd* fds, nfds_t count, int timeout) {
  machine().yield();
  const Inside inside;
  const int64_t deadline = timeout < 0 ? kNever : machine().now() + int64_t{1'000'000} * timeout;
  for (;;) {
    int ready = 0;
    std::shared_ptr<File> file;
    for (nfds_t i = 0; i < count; ++i) {
      fds[i].revents = 0;
      file = find(fds[i].fd);
      const uint32_t wanted = static_cast<uint16_t>(fds[i].events) | EPOLLERR | EPOLLHUP;
      if (file != nullptr) fds[i].revents = static_cast<short>(file->ready() & wanted);
      ready += fds[i].revents != 0;
    }
    if (ready > 0 || timeout == 0) return ready;
    if (count > 1) machine().fail("poll() of several descriptors is not simulated");
    if (!machine().wait(file.get(), "poll", deadline)) return 0;
  }
}

int epoll_create1(int) noexcept {
  if (refuses_call(EMFILE)) return -1;
  const Inside inside;
  return network().add(std::make_shared<Epoll>());
}
int epoll_create(int) noexcept { return epoll_create1(0); }

int epoll_ctl(int fd, int operation, int target, epoll_event* event) noexcept {
  if (operation == EPOLL_CTL_ADD && refuses_call(ENOSPC)) return -1;
  const Inside inside;
  const auto epoll = find_as<Epoll>(fd);
  if (epoll == nullptr) return -1;
  const auto file = find(target);
  if (file == nullptr) return target < kFirstDescriptor ? 0 : fail(EBADF);  // the kernel's pipes of signals stay silent
  const auto watch =
      std::find_if(epoll->watches.begin(), epoll->watches.end(), [&](auto& w) { return w.file == file; });
  if (operation == EPOLL_CTL_DEL) {
    if (watch == epoll->watches.end()) return fail(ENOENT);
    epoll->watches.erase(watch);
    std::erase(file->watchers, epoll.get());
    return 0;
  }
  if (operation == EPOLL_CTL_MOD && watch == epoll->watches.end()) return fail(ENOENT);
  Epoll::Watch& to = watch != epoll->watches.end() ? *watch : epoll->watches.emplace_back();
  if (to.file == nullptr) file->watchers.push_back(epoll.get());
  to = {.file = file, .events = event->events, .data = event->data.u64, .pending = true};
  machine().wake_all(epoll.get());
  return 0;
}

int epoll_wait(int fd, epoll_event* events, int most, int timeout) {
  machine().yield();
  const Inside inside;
  const auto epoll = find_as<Epoll>(fd);
  if (epoll == nullptr) return -1;
  const int64_t end = timeout < 0 ? kNever : machine().now() + int64_t{1'000'000} * timeout;
  for (;;) {
    const int count = epoll->collect(events, most);
    if (count > 0 || timeout == 0) return count;
    const int64_t deadline = std::min(end, epoll->next_expiry());
    if (!machine().wait(epoll.get(), "events", deadline) && machine().now() >= end) return 0;
  }
}

int eventfd(unsigned value, int) noexcept {
  if (refuses_call(EMFILE)) return -1;
  const Inside inside;
  auto file = std::make_shared<Counter>();
  file->value = value;
  return network().add(std::move(file));
}

int timerfd_create(clockid_t, int) noexcept {
  if (refuses_call(EMFILE)) return -1;
  const Inside inside;
  return network().add(std::make_shared<Counter>());
}

int timerfd_settime(int fd, int flags, const itimerspec* time, itimerspec*) noexcept {
  const Inside inside;
  const auto timer = find_as<Counter>(fd);
  if (timer == nullptr) return -1;
  const timespec& value = time->it_value;
  const int64_t given = value.tv_sec * 1'000'000'000 + value.tv_nsec;
  timer->expiry = given == 0 ? kNever : (flags & TFD_TIMER_ABSTIME) != 0 ? machine().now() : machine().now() + given;
  timer->changed();
  return 0;
}

}  // extern "C"
