// A library to preload into a server with a CUDA device. When the file that SLUICE_TEST_FAULT names appears, it
// launches a kernel that traps in the server's context. As after any fault of a kernel, nothing can run there from then
// on.
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char kPtx[] =
    ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry fault() {\n  trap;\n  ret;\n}\n";

// The driver's functions; the headers of CUDA are not needed to build this.
typedef int (*Init)(unsigned flags);
typedef int (*Retain)(void** context, int device);
typedef int (*SetCurrent)(void* context);
typedef int (*LoadData)(void** module, const void* image);
typedef int (*GetFunction)(void** function, void* module, const char* name);
typedef int (*Launch)(void* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned shared,
                      void* stream, void** parameters, void** extra);

static void* wait_and_trap(void* path) {
  while (access(path, F_OK) != 0) usleep(10000);
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  void *context = NULL, *module = NULL, *function = NULL;
  const int failed = driver == NULL || ((Init)dlsym(driver, "cuInit"))(0) != 0 ||
                     ((Retain)dlsym(driver, "cuDevicePrimaryCtxRetain"))(&context, 0) != 0 ||
                     ((SetCurrent)dlsym(driver, "cuCtxSetCurrent"))(context) != 0 ||
                     ((LoadData)dlsym(driver, "cuModuleLoadData"))(&module, kPtx) != 0 ||
                     ((GetFunction)dlsym(driver, "cuModuleGetFunction"))(&function, module, "fault") != 0 ||
                     ((Launch)dlsym(driver, "cuLaunchKernel"))(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL) != 0;
  fprintf(stderr, failed ? "no fault could be made\n" : "a kernel traps\n");
  return NULL;
}

__attribute__((constructor)) static void start(void) {
  pthread_t thread;
  char* path = getenv("SLUICE_TEST_FAULT");
  if (path != NULL && pthread_create(&thread, NULL, wait_and_trap, path) == 0) pthread_detach(thread);
}
