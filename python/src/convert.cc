// Builds objects of Python; see convert.h.
#include "convert.h"

#include <fmt/core.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <utility>

#include "engine.h"
#include "sluice/sampling_parameters.h"

namespace nb = nanobind;

namespace sluice::python {
namespace {

// The class of errors that name a request's field; lives as long as the interpreter.
PyObject* request_error = nullptr;

nb::str text(const std::string& utf8) {
  return nb::steal<nb::str>(PyUnicode_DecodeUTF8(utf8.data(), static_cast<Py_ssize_t>(utf8.size()), "replace"));
}

nb::object logprobs(const std::vector<TokenLogprobs>& list) {
  if (list.empty()) return nb::none();
  const auto entry = [](const TokenLogprob& t) { return nb::make_tuple(t.id, t.logprob, t.rank); };
  nb::list out;
  for (const TokenLogprobs& token : list) {
    nb::list alternatives;
    alternatives.append(entry(token.token));
    for (const TokenLogprob& other : token.top) {
      if (other.id != token.token.id) alternatives.append(entry(other));
    }
    out.append(alternatives);
  }
  return out;
}

nb::object stop_reason(const ChoicePart& choice) {
  if (!choice.finish) return nb::none();
  if (!choice.finish->stop_string.empty()) return text(choice.finish->stop_string);
  if (choice.finish->stop_token) return nb::int_(*choice.finish->stop_token);
  return nb::none();
}

nb::tuple choice_tuple(const ChoicePart& choice) {
  nb::object finish = nb::none();
  if (choice.finish) finish = nb::str(to_string(choice.finish->reason));
  return nb::make_tuple(choice.index, text(choice.text), to_list(choice.tokens), logprobs(choice.logprobs), finish,
                        stop_reason(choice));
}

// An array that takes over the vector's memory.
nb::object array(std::vector<float> vector) {
  auto* kept = new std::vector<float>(std::move(vector));
  const nb::capsule owner(kept, [](void* memory) noexcept { delete static_cast<std::vector<float>*>(memory); });
  return nb::cast(nb::ndarray<nb::numpy, float, nb::ndim<1>>(kept->data(), {kept->size()}, owner));
}

nb::object error_of(const Part& part) {
  for (const ChoicePart& choice : part.choices) {
    if (choice.finish && choice.finish->reason == FinishReason::kError) {
      return nb::make_tuple(text(choice.finish->message), text(choice.finish->param));
    }
  }
  if (part.pooled && part.pooled->reason == FinishReason::kError) {
    return nb::make_tuple(text(part.pooled->message), "");
  }
  return nb::none();
}

void raise(PyObject* type, const char* message) { PyErr_SetString(type, message); }

void raise_request_error(const Error& error) {
  nb::object exception = nb::handle(request_error)(text(error.what()));
  exception.attr("param") = text(error.param);
  exception.attr("reason") = text(error.reason);
  PyErr_SetObject(request_error, exception.ptr());
}

void raise(const Error& error) {
  switch (error.code) {
    case ErrorCode::kInvalidRequest:
    case ErrorCode::kUnsupportedModel:
    case ErrorCode::kCorruptFile:
      return raise_request_error(error);
    case ErrorCode::kNotFound:
      return raise(PyExc_FileNotFoundError, error.what());
    case ErrorCode::kOutOfMemory:
      return raise(PyExc_MemoryError, error.what());
    case ErrorCode::kOverloaded:
    case ErrorCode::kInternal:
      return raise(PyExc_RuntimeError, error.what());
  }
}

void translate(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const Error& error) {
    raise(error);
  } catch (const Closed&) {
    raise(PyExc_RuntimeError, "The engine was closed.");
  } catch (const Forked& forked) {
    raise(PyExc_RuntimeError, fmt::format("The model was loaded by process {}, and a forked process does not have its "
                                          "threads. Load it in this process, or start processes by 'spawn'.",
                                          forked.owner)
                                  .c_str());
  }
}

}  // namespace

nb::list to_list(const std::vector<TokenId>& tokens) {
  nb::list out;
  for (const TokenId id : tokens) out.append(id);
  return out;
}

nb::tuple to_python(Part part) {
  nb::list choices;
  for (const ChoicePart& choice : part.choices) choices.append(choice_tuple(choice));
  nb::object vectors = nb::none();
  const nb::object error = error_of(part);
  if (part.pooled && part.pooled->reason == FinishReason::kStop) {
    nb::list arrays;
    for (std::vector<float>& vector : part.pooled->vectors) arrays.append(array(std::move(vector)));
    vectors = arrays;
  }
  return nb::make_tuple(part.key, part.last, part.cached_tokens, choices, logprobs(part.prompt_logprobs), vectors,
                        error);
}

nb::dict to_python(const ModelInfo& model) {
  nb::dict out;
  out["name"] = model.name;
  out["path"] = model.path;
  out["family"] = model.family;
  out["dtype"] = model.dtype;
  out["backend"] = model.backend;
  out["task"] = to_string(model.task);
  out["parameters"] = model.parameters;
  out["max_model_len"] = model.max_model_len;
  out["vocab_size"] = model.vocab_size;
  out["vector_size"] = model.vector_size;
  out["has_chat_template"] = model.has_chat_template;
  out["eos_token_ids"] = model.eos_token_ids;
  nb::dict sampling;  // the checkpoint's defaults, where they differ from the usual ones
  const SamplingParams usual;
  for (const SamplingParameter& row : kSamplingParameters) {
    const double value = row.of(model.default_sampling);
    if (value == row.of(usual)) continue;
    const std::string name(row.name);
    if (row.is_integer()) {
      sampling[name.c_str()] = static_cast<int64_t>(value);
    } else {
      sampling[name.c_str()] = value;
    }
  }
  if (model.default_sampling.max_tokens) sampling["max_tokens"] = *model.default_sampling.max_tokens;
  out["default_sampling"] = sampling;
  return out;
}

void add_errors(nb::module_& module) {
  request_error = PyErr_NewExceptionWithDoc("sluice.RequestError",
                                            "An argument, an option or a field of a request is wrong.\n\n"
                                            "param: the path of what is wrong, or an empty text\n"
                                            "reason: a machine-readable code, or an empty text",
                                            PyExc_ValueError, nullptr);
  if (request_error == nullptr) throw nb::python_error();
  module.attr("RequestError") = nb::handle(request_error);
  nb::register_exception_translator(translate);
}

}  // namespace sluice::python
