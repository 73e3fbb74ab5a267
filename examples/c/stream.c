/* Example: streams the answer to a question, in C.
 *   cc -Iinclude examples/c/stream.c -Lbuild/release/lib -lsluice -o stream
 *   LD_LIBRARY_PATH=build/release/lib ./stream models/minnow-6m "What is 2 + 2?" */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sluice/c.h"

static int fail(void) {
  fprintf(stderr, "%s\n", sluice_last_error());
  return 1;
}

/* Writes {"messages": [{"role": "user", "content": QUESTION}], ...}. The caller frees the text. */
static char* request_of(const char* question) {
  const char* head = "{\"temperature\": 0, \"max_tokens\": 64, \"messages\": [{\"role\": \"user\", \"content\": \"";
  char* out = malloc(strlen(head) + 6 * strlen(question) + 8);
  if (out == NULL) return NULL;
  char* at = out + sprintf(out, "%s", head);
  for (const char* c = question; *c != '\0'; ++c) {
    if (*c == '"' || *c == '\\' || (unsigned char)*c < 0x20) {
      at += sprintf(at, "\\u%04x", (unsigned)(unsigned char)*c);
    } else {
      *at++ = *c;
    }
  }
  strcpy(at, "\"}]}");
  return out;
}

static int print_answer(sluice_engine* engine, const char* question) {
  char* request = request_of(question);
  sluice_generation* generation = NULL;
  sluice_status status = sluice_generation_start(engine, request, NULL, NULL, &generation);
  free(request);
  if (status != SLUICE_OK) return fail();
  const sluice_event* event = NULL;
  while ((status = sluice_generation_next(generation, -1, &event)) == SLUICE_OK) {
    fwrite(event->text, 1, event->text_bytes, stdout);
    fflush(stdout);
  }
  puts("");
  sluice_generation_free(generation);
  return status == SLUICE_END ? 0 : fail();
}

int main(int argc, char** argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: %s MODEL QUESTION\n", argv[0]);
    return 2;
  }
  if (sluice_abi_version() != SLUICE_ABI_VERSION) {
    fprintf(stderr, "the library has another version of the interface\n");
    return 1;
  }
  const sluice_option options[] = {{"max-num-seqs", "4"}};
  sluice_engine* engine = NULL;
  if (sluice_engine_open(argv[1], options, 1, &engine) != SLUICE_OK) return fail();
  const int status = print_answer(engine, argv[2]);
  sluice_engine_close(engine);
  return status;
}
