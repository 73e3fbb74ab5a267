/* The C API of Sluice: load a model in a program and use it. libsluice.so exports these functions and no others.
 *
 *   sluice_engine* engine;
 *   if (sluice_engine_open("models/minnow-6m", NULL, 0, &engine) != SLUICE_OK) puts(sluice_last_error());
 *
 * Strings are UTF-8 and end with a zero byte. No function throws or aborts because of its arguments; each one that can
 * fail returns a status, and sluice_last_error() says what was wrong. Pointers that are not said to be optional must
 * not be NULL; a NULL pointer is SLUICE_INVALID_ARGUMENT. What a function returns through an out parameter is unchanged
 * when it fails.
 *
 * Threads: functions may be called from any thread and at the same time, except that one generation is read and freed
 * by one thread at a time, and that nothing may use an object that is being closed or freed.
 *
 * fork(): a child process has no threads of the engine. There, functions return SLUICE_FORKED, and closing or freeing
 * objects of the parent releases nothing. Call execve(), or open an engine in the child only.
 */
#ifndef SLUICE_C_H
#define SLUICE_C_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define SLUICE_API __attribute__((visibility("default")))
#else
#define SLUICE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface. It grows when a function or a field changes or goes away. Functions, statuses and
 * fields at the end of structs that the library allocates are added without a new version. */
#define SLUICE_ABI_VERSION 1

/* Returns the library's SLUICE_ABI_VERSION; programs compare it with their header's. Cannot fail. */
SLUICE_API uint32_t sluice_abi_version(void);

/* Returns the version of Sluice, "0.1.0". The text is the library's and lives as long. Cannot fail. */
SLUICE_API const char* sluice_version(void);

typedef enum sluice_status {
  SLUICE_OK = 0,
  SLUICE_INVALID_ARGUMENT = 1,  /* an argument, an option or a field of a request is wrong */
  SLUICE_NOT_FOUND = 2,         /* no such model, adapter or file */
  SLUICE_OVERLOADED = 3,        /* the queue of requests is full: try again later */
  SLUICE_UNSUPPORTED_MODEL = 4, /* the checkpoint asks for something that Sluice does not implement */
  SLUICE_CORRUPT_FILE = 5,      /* a file contradicts its format */
  SLUICE_OUT_OF_MEMORY = 6,     /* the model does not fit, or an allocation failed */
  SLUICE_INTERNAL = 7,          /* a fault inside the engine */
  SLUICE_TIMEOUT = 8,           /* nothing came within the time */
  SLUICE_END = 9,               /* the generation has no further events */
  SLUICE_FORKED = 10            /* the object belongs to the parent process */
} sluice_status;

/* Returns what was wrong in the last call on this thread that did not return SLUICE_OK, SLUICE_TIMEOUT or SLUICE_END;
 * an empty string if there was none. The text is valid until the thread's next such call. Cannot fail. */
SLUICE_API const char* sluice_last_error(void);

/* Returns the path of the option or field that was at fault in that call ("max_model_len", "messages[2].content"), or
 * an empty string. Valid like sluice_last_error(). Cannot fail. */
SLUICE_API const char* sluice_last_error_field(void);

/* Frees a text or an array that a function below allocated for the caller. NULL is allowed. Cannot fail. */
SLUICE_API void sluice_free(void* memory);

/* ---- Engines ---- */

typedef struct sluice_engine sluice_engine;

/* An option by its name on the command line without dashes ("max-model-len"; '_' counts as '-'). Values are texts as
 * there; flags take "true" and "false", lists and objects are JSON. docs/options.md lists them; options of vLLM are
 * taken, too (docs/vllm-options.md). */
typedef struct sluice_option {
  const char* name;
  const char* value;
} sluice_option;

/* Loads a model. Blocks while it does so, which may take minutes.
 *
 * model: a folder or a file of a checkpoint, or org/name[:revision] on the Hugging Face hub, which is downloaded if it
 * is not in the cache.
 * options: `count` options; may be NULL if `count` is 0. The caller keeps them.
 * engine: receives the engine. The caller closes it.
 *
 * Fails with SLUICE_INVALID_ARGUMENT for an option (sluice_last_error_field() names it), SLUICE_NOT_FOUND,
 * SLUICE_UNSUPPORTED_MODEL, SLUICE_CORRUPT_FILE or SLUICE_OUT_OF_MEMORY. */
SLUICE_API sluice_status sluice_engine_open(const char* model, const sluice_option* options, size_t count,
                                            sluice_engine** engine);

/* Ends the engine's generations with the finish reason "abort" and frees the engine. Blocks until callbacks have
 * returned; must not be called from one. Generations stay valid and are freed by the caller. NULL is allowed. */
SLUICE_API void sluice_engine_close(sluice_engine* engine);

/* Describes the loaded model as a JSON object: name, family, dtype, backend, task ("generate", "embed" or "score"),
 * parameters, max_model_len (tokens), vocab_size, vector_size (floats of a vector, or labels), has_chat_template and
 * eos_token_ids. `json` receives the text; the caller frees it with sluice_free(). Fails only for lack of memory. */
SLUICE_API sluice_status sluice_engine_info(const sluice_engine* engine, char** json);

/* Loads an adapter (LoRA) from a folder in the format of Hugging Face's peft. The engine must have been opened with the
 * option enable-lora. Requests use it by naming it as their "model". Fails like sluice_engine_open(). */
SLUICE_API sluice_status sluice_adapter_load(sluice_engine* engine, const char* name, const char* folder);

/* Forgets an adapter; generations that run keep it. Fails with SLUICE_NOT_FOUND if the name is unknown. */
SLUICE_API sluice_status sluice_adapter_unload(sluice_engine* engine, const char* name);

/* ---- Tokens ---- */

/* Converts text of `bytes` bytes to tokens. add_special_tokens: 1 adds the tokens that the tokenizer puts around a
 * text, 0 does not. `tokens` receives an array of `count` token ids; the caller frees it with sluice_free(). */
SLUICE_API sluice_status sluice_tokenize(const sluice_engine* engine, const char* text, size_t bytes,
                                         int add_special_tokens, int32_t** tokens, size_t* count);

/* Converts `count` token ids to text. skip_special_tokens: 1 leaves special tokens out. `text` receives the text, which
 * may contain zero bytes, and `bytes` its length; `bytes` may be NULL. The caller frees it with sluice_free(). Fails
 * with SLUICE_INVALID_ARGUMENT for an id outside of the vocabulary. */
SLUICE_API sluice_status sluice_detokenize(const sluice_engine* engine, const int32_t* tokens, size_t count,
                                           int skip_special_tokens, char** text, size_t* bytes);

/* Renders the conversation of a chat request (see below) by the model's chat template. `text` receives the prompt; the
 * caller frees it with sluice_free(). */
SLUICE_API sluice_status sluice_render_chat(const sluice_engine* engine, const char* request_json, char** text);

/* ---- Generation ---- */

typedef struct sluice_generation sluice_generation;

/* A token and the natural logarithm of its probability before penalties and temperature. rank 1 is the likeliest. */
typedef struct sluice_logprob {
  int32_t token;
  float logprob;
  int32_t rank;
} sluice_logprob;

/* Log probabilities of `count` tokens. Token i has top_counts[i] alternatives, most likely first; those of all tokens
 * follow each other in `top`. The pointers are NULL when `count` is 0. */
typedef struct sluice_logprobs {
  size_t count;
  const sluice_logprob* tokens;
  const int32_t* top_counts;
  const sluice_logprob* top;
} sluice_logprobs;

/* One piece of the answer to one choice. Strings are never NULL unless they are said to be. */
typedef struct sluice_event {
  int32_t choice;           /* counted from 0, below the request's "n" */
  int32_t last;             /* 1: nothing follows for the whole generation */
  const char* text;         /* new text of the answer, whole UTF-8 characters; may be empty */
  size_t text_bytes;        /* its length; the text may contain zero bytes */
  const char* reasoning;    /* new text of what the model thinks before it answers; may be empty */
  size_t reasoning_bytes;   /* its length */
  const char* tool_calls;   /* new pieces of calls: a JSON array as in a streamed chat of OpenAI's API; NULL: none */
  const int32_t* tokens;    /* tokens of this step, special and end tokens included; NULL when there are none */
  size_t token_count;       /* their number */
  sluice_logprobs logprobs; /* one per token of this step, when the request asks for them */
  sluice_logprobs prompt_logprobs; /* in the first event of choice 0, when asked for: one per prompt token */
  const char* finish_reason;       /* how the choice ended: "stop", "length", "abort" or "error"; NULL: it goes on */
  const char* stop_string;         /* the stop string that ended it; NULL: another reason */
  int32_t stop_token;              /* the entry of stop_token_ids that ended it; -1: another reason */
  const char* error;               /* for "error": what was wrong; otherwise NULL */
  const char* error_field;         /* for "error": the request's field at fault, or empty; otherwise NULL */
  int32_t prompt_tokens;           /* usage of this choice so far, in tokens */
  int32_t cached_tokens;           /* prompt tokens that were found in the prefix cache */
  int32_t completion_tokens;       /* tokens of this choice, the end token included */
  int32_t reasoning_tokens;        /* those of them that are thought */
} sluice_event;

/* Receives the events of a generation in order, on a thread of the engine. It must return soon: all answers wait for
 * it. It must not free the generation or close the engine. `event` is valid during the call. */
typedef void (*sluice_callback)(const sluice_event* event, void* user_data);

/* Starts to generate.
 *
 * request_json: the body of a request to OpenAI's API. With "messages" it is a chat completion; with "prompt", a string
 * or an array of token ids, a text completion. docs/parameters.md lists the fields. Unknown fields are errors. "model"
 * may be left out, or name the model or an adapter. "stream" changes nothing: answers come in events. "echo" and
 * several prompts are refused. callback: receives the events, from this call on; may be NULL: sluice_generation_next()
 * gives them then. user_data: is passed to the callback; may be NULL. generation: receives the generation. The caller
 * frees it.
 *
 * Fails with SLUICE_INVALID_ARGUMENT for a field (sluice_last_error_field() names it), SLUICE_NOT_FOUND for an unknown
 * model or SLUICE_OVERLOADED; then no event comes. */
SLUICE_API sluice_status sluice_generation_start(sluice_engine* engine, const char* request_json,
                                                 sluice_callback callback, void* user_data,
                                                 sluice_generation** generation);

/* Waits for the next event of a generation without a callback, at most timeout_ms milliseconds; below 0: without a
 * limit. `event` receives the event, which is valid until the next call with this generation. Returns SLUICE_END after
 * the last event and SLUICE_TIMEOUT if none came in time. Fails with SLUICE_INVALID_ARGUMENT if there is a callback. */
SLUICE_API sluice_status sluice_generation_next(sluice_generation* generation, int64_t timeout_ms,
                                                const sluice_event** event);

/* Ends a generation soon with the finish reason "abort". Its last events still come. May be called at any time, by any
 * thread and from callbacks. NULL is allowed. */
SLUICE_API void sluice_generation_cancel(sluice_generation* generation);

/* Cancels a generation if it runs, waits for its callback and frees it. No callback comes afterwards. NULL is allowed.
 */
SLUICE_API void sluice_generation_free(sluice_generation* generation);

/* ---- Vectors and scores ---- */

/* `rows` vectors of `width` floats, one after the other. */
typedef struct sluice_vectors {
  float* data; /* the caller frees it with sluice_free() */
  size_t rows;
  size_t width;
  int32_t prompt_tokens; /* tokens of all texts together */
} sluice_vectors;

/* Computes a vector per text with a model for embeddings, or a score per label with a classifier. Blocks.
 *
 * texts: `count` texts, at least one.
 * pairs: NULL, or `count` texts that are joined with `texts` to pairs, for classifiers and rerankers.
 * options_json: NULL, or a JSON object with "dimensions" (keep so many leading floats), "normalize" (true: scale
 * vectors to length 1), "use_activation" (false: scores are logits), "prompt_name" (the model's prompt to put before
 * texts; "": none) and "truncate_prompt_tokens" (cut longer texts off at the end; -1: at the model's limit). vectors:
 * receives the result.
 *
 * Fails with SLUICE_INVALID_ARGUMENT for a text that is too long, a field of the options, or a model that generates. */
SLUICE_API sluice_status sluice_embed(sluice_engine* engine, const char* const* texts, const char* const* pairs,
                                      size_t count, const char* options_json, sluice_vectors* vectors);

#ifdef __cplusplus
}
#endif

#endif /* SLUICE_C_H */
