// The C library's threads, locks and conditions, and the kernel's futexes, on the simulated machine. The definitions
// here take the place of the library's in this program. Locks keep their state in the library's own structures, which
// the static initializers set to zero.
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>

#include <cerrno>
#include <cstdarg>
#include <random>

#include "base/check.h"
#include "simulation/machine/calls.h"
#include "simulation/machine/machine.h"
#include "simulation/machine/system.h"

using sluice::simulation::Fiber;
using sluice::simulation::Inside;
using sluice::simulation::kNever;
using sluice::simulation::Machine;
using sluice::simulation::nanoseconds;

namespace {

Machine& machine() { return Machine::get(); }

// Mutexes: __owner is the id of the thread that holds it, plus one; __count counts recursive locks.
int& owner(pthread_mutex_t* m) { return m->__data.__owner; }
int me() { return machine().current().id + 1; }

// Counts waiting threads where that is all an object remembers.
struct Waiters {
  uint32_t count;
};
Waiters& waiters(pthread_cond_t* c) { return *reinterpret_cast<Waiters*>(c); }

struct Lock {  // of a pthread_rwlock_t
  int32_t readers;
  int32_t writer;
};
Lock& lock_of(pthread_rwlock_t* l) { return *reinterpret_cast<Lock*>(l); }

int wait_for(pthread_cond_t* c, pthread_mutex_t* m, int64_t deadline) {
  Machine& all = machine();
  bool woken = true;
  {
    const Inside inside;  // nobody may run between the unlock and the wait: a signal would be lost
    pthread_mutex_unlock(m);
    if (!all.chance(all.weather().spurious)) {
      ++waiters(c).count;
      woken = all.wait(c, "a condition", deadline);
      --waiters(c).count;
    }
  }
  pthread_mutex_lock(m);
  return woken ? 0 : ETIMEDOUT;
}

}  // namespace

extern "C" {

int pthread_create(pthread_t* thread, const pthread_attr_t*, void* (*start)(void*), void* argument) {
  if (sluice::simulation::refuses_call(EAGAIN)) return EAGAIN;
  *thread = reinterpret_cast<pthread_t>(machine().create(start, argument));
  return 0;
}
int pthread_join(pthread_t thread, void** result) {
  void* value = machine().join(*reinterpret_cast<Fiber*>(thread));
  if (result != nullptr) *result = value;
  return 0;
}
int pthread_detach(pthread_t thread) {
  machine().detach(*reinterpret_cast<Fiber*>(thread));
  return 0;
}
pthread_t pthread_self() { return reinterpret_cast<pthread_t>(&machine().current()); }
int pthread_setname_np(pthread_t, const char*) { return 0; }
int pthread_setaffinity_np(pthread_t, size_t, const cpu_set_t*) { return 0; }

int pthread_mutex_init(pthread_mutex_t* m, const pthread_mutexattr_t* attributes) {
  *m = {};
  int kind = PTHREAD_MUTEX_NORMAL;
  if (attributes != nullptr) pthread_mutexattr_gettype(attributes, &kind);
  m->__data.__kind = kind;
  return 0;
}
int pthread_mutex_destroy(pthread_mutex_t* m) {
  if (owner(m) != 0) machine().fail("a mutex is destroyed while it is locked");
  return 0;
}
int pthread_mutex_trylock(pthread_mutex_t* m) {
  if (owner(m) == 0) {
    owner(m) = me();
    m->__data.__count = 1;
    return 0;
  }
  if (owner(m) != me() || m->__data.__kind != PTHREAD_MUTEX_RECURSIVE) return EBUSY;
  ++m->__data.__count;
  return 0;
}
int pthread_mutex_lock(pthread_mutex_t* m) {
  machine().yield();
  while (pthread_mutex_trylock(m) != 0) {
    if (owner(m) == me()) machine().fail("a thread waits for a mutex that it holds");
    ++m->__data.__nusers;
    machine().wait(m, "a mutex");
    --m->__data.__nusers;
  }
  return 0;
}
int pthread_mutex_unlock(pthread_mutex_t* m) {
  if (owner(m) != me()) machine().fail("a thread unlocks a mutex that it does not hold");
  if (--m->__data.__count > 0) return 0;
  owner(m) = 0;
  if (m->__data.__nusers > 0) machine().wake_all(m);
  machine().yield();
  return 0;
}

int pthread_cond_init(pthread_cond_t* c, const pthread_condattr_t*) {
  *c = {};
  return 0;
}
int pthread_cond_destroy(pthread_cond_t* c) {
  if (waiters(c).count > 0) machine().fail("a condition is destroyed while threads wait for it");
  return 0;
}
int pthread_cond_wait(pthread_cond_t* c, pthread_mutex_t* m) { return wait_for(c, m, kNever); }
int pthread_cond_timedwait(pthread_cond_t* c, pthread_mutex_t* m, const timespec* until) {
  return wait_for(c, m, nanoseconds(*until));
}
int pthread_cond_clockwait(pthread_cond_t* c, pthread_mutex_t* m, clockid_t, const timespec* until) {
  return wait_for(c, m, nanoseconds(*until));
}
int pthread_cond_signal(pthread_cond_t* c) {
  if (waiters(c).count > 0) machine().wake_one(c);
  machine().yield();
  return 0;
}
int pthread_cond_broadcast(pthread_cond_t* c) {
  if (waiters(c).count > 0) machine().wake_all(c);
  machine().yield();
  return 0;
}

int pthread_rwlock_init(pthread_rwlock_t* l, const pthread_rwlockattr_t*) {
  *l = {};
  return 0;
}
int pthread_rwlock_destroy(pthread_rwlock_t*) { return 0; }
int pthread_rwlock_rdlock(pthread_rwlock_t* l) {
  machine().yield();
  while (lock_of(l).writer != 0) machine().wait(l, "a lock for reading");
  ++lock_of(l).readers;
  return 0;
}
int pthread_rwlock_wrlock(pthread_rwlock_t* l) {
  machine().yield();
  while (lock_of(l).writer != 0 || lock_of(l).readers > 0) machine().wait(l, "a lock for writing");
  lock_of(l).writer = me();
  return 0;
}
int pthread_rwlock_unlock(pthread_rwlock_t* l) {
  if (lock_of(l).writer != 0) {
    lock_of(l).writer = 0;
  } else {
    --lock_of(l).readers;
  }
  machine().wake_all(l);
  machine().yield();
  return 0;
}

int pthread_once(pthread_once_t* once, void (*routine)()) {
  constexpr int kRunning = 1, kDone = 2;
  while (*once == kRunning) machine().wait(once, "the end of an initialization");
  if (*once == kDone) return 0;
  *once = kRunning;
  routine();
  *once = kDone;
  machine().wake_all(once);
  return 0;
}

// Guards of static local variables: the first byte says that the variable is ready, the second that it is being made.
int __cxa_guard_acquire(char* guard) {
  while (guard[0] == 0 && guard[1] != 0) machine().wait(guard, "a static variable");
  if (guard[0] != 0) return 0;
  guard[1] = 1;
  return 1;
}
void __cxa_guard_release(char* guard) {
  guard[0] = 1;
  guard[1] = 0;
  machine().wake_all(guard);
}
void __cxa_guard_abort(char* guard) {
  guard[1] = 0;
  machine().wake_all(guard);
}
int __cxa_thread_atexit_impl(void (*function)(void*), void* object, void*) {
  const Inside inside;
  machine().current().exits.emplace_back(function, object);
  return 0;
}

// Keys
static std::vector<void (*)(void*)>& key_destructors() {
  alignas(std::vector<void (*)(void*)>) static std::byte memory[sizeof(std::vector<void (*)(void*)>)];
  static bool made = false;
  auto* all = reinterpret_cast<std::vector<void (*)(void*)>*>(memory);
  if (!made) new (memory) std::vector<void (*)(void*)>;
  made = true;
  return *all;
}
int pthread_key_create(pthread_key_t* key, void (*destructor)(void*)) {
  const Inside inside;
  *key = static_cast<pthread_key_t>(key_destructors().size());
  key_destructors().push_back(destructor);
  return 0;
}
int pthread_key_delete(pthread_key_t key) {
  key_destructors()[key] = nullptr;
  return 0;
}
void* pthread_getspecific(pthread_key_t key) {
  const auto& keys = machine().current().keys;
  return key < keys.size() ? keys[key] : nullptr;
}
int pthread_setspecific(pthread_key_t key, const void* value) {
  const Inside inside;
  auto& keys = machine().current().keys;
  if (key >= keys.size()) keys.resize(key + 1);
  keys[key] = const_cast<void*>(value);
  return 0;
}

// Time to sleep
int nanosleep(const timespec* time, timespec*) {
  machine().sleep_until(machine().now() + time->tv_sec * 1'000'000'000 + time->tv_nsec);
  return 0;
}
int clock_nanosleep(clockid_t, int flags, const timespec* time, timespec* left) {
  if ((flags & TIMER_ABSTIME) == 0) return nanosleep(time, left);
  machine().sleep_until(nanoseconds(*time));
  return 0;
}
int usleep(unsigned microseconds) {
  machine().sleep_until(machine().now() + int64_t{1000} * microseconds);
  return 0;
}
int sched_yield() {
  machine().yield();
  return 0;
}

// std::atomic::wait and std::future sleep in the kernel through this function.
long syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  long a[6];
  for (long& argument : a) argument = va_arg(list, long);
  va_end(list);
  if (number != SYS_futex) return sluice::simulation::system_call(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  auto* word = reinterpret_cast<int*>(a[0]);
  const int operation = static_cast<int>(a[1]) & FUTEX_CMD_MASK;
  const auto* until = reinterpret_cast<const timespec*>(a[3]);
  switch (operation) {
    case FUTEX_WAIT:
    case FUTEX_WAIT_BITSET: {
      if (*word != static_cast<int>(a[2])) {
        errno = EAGAIN;
        return -1;
      }
      int64_t deadline = kNever;
      if (until != nullptr) {
        deadline = nanoseconds(*until) + (operation == FUTEX_WAIT ? machine().now() : 0);
      }
      if (machine().wait(word, "a futex", deadline)) return 0;
      errno = ETIMEDOUT;
      return -1;
    }
    default:
      if (a[2] == 1) {
        machine().wake_one(word);
      } else {
        machine().wake_all(word);
      }
      machine().yield();
      return 1;
  }
}

}  // extern "C"

// The processor's random numbers would differ from run to run.
namespace std {
void random_device::_M_init(const char*, size_t) {}
void random_device::_M_init(const std::string&) {}
void random_device::_M_fini() {}
random_device::result_type random_device::_M_getval() { return static_cast<result_type>(Machine::get().random()); }
}  // namespace std
