// Metrics as JSON, grouped by model. Written as text: a snapshot has hundreds of values and is made while memory is
// short, too.
#include "server/snapshot.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "server/metrics.h"

namespace sluice::server {
namespace {

// The other histograms would triple the size of an event.
constexpr std::string_view kShownHistograms[] = {
    "vllm:time_to_first_token_seconds", "vllm:request_time_per_output_token_seconds", "vllm:iteration_tokens_total"};

constexpr std::string_view kModelLabel = "model_name";

// A model and the members of its object of metrics.
using ModelText = std::pair<std::string, std::string>;

std::string json_text(std::string_view text) { return dump_json(Json(std::string(text))); }

// JSON has no numbers for infinities.
std::string json_number(double value) { return std::isfinite(value) ? fmt::format("{}", value) : "null"; }

bool names_the_engine(std::string_view label) { return label == kModelLabel || label == "engine"; }

bool has_other_labels(const MetricSample& sample) {
  return !std::ranges::all_of(sample.labels, [](const auto& label) { return names_the_engine(label.first); });
}

std::string sample_json(const MetricSample& sample) {
  std::string out = "{";
  for (const auto& [label, text] : sample.labels) {
    if (!names_the_engine(label)) out += fmt::format("{}:{},", json_text(label), json_text(text));
  }
  return out + fmt::format("\"value\":{}}}", json_number(sample.value));
}

std::string histogram_json(const Histogram& h) {
  return fmt::format(R"({{"bounds":[{}],"counts":[{}],"sum":{}}})", fmt::join(h.bounds, ","), fmt::join(h.counts, ","),
                     json_number(h.sum));
}

using Label = std::pair<std::string, std::string>;

std::vector<Label> without_engine(const MetricSample& sample) {
  std::vector<Label> labels = sample.labels;
  std::erase_if(labels, [](const Label& label) { return label.first == "engine"; });
  return labels;
}

// Joins the samples of a model's replicas, which differ in the label "engine" only: sums, means of shares, and one of
// equal descriptions.
std::vector<MetricSample> join_replicas(const MetricFamily& family, std::span<const MetricSample> samples) {
  struct Joined {
    std::vector<Label> labels;
    MetricSample sample;
    int count;
  };
  const bool is_share = family.name.ends_with("_perc"), is_info = family.name.ends_with("_info");
  std::vector<Joined> joined;
  for (const MetricSample& sample : samples) {
    std::vector<Label> labels = without_engine(sample);
    const auto found = std::ranges::find(joined, labels, &Joined::labels);
    if (found == joined.end()) {
      joined.push_back({std::move(labels), sample, 1});
    } else if (!is_info) {
      ++found->count;
      found->sample.value += sample.value;
      found->sample.histogram.sum += sample.histogram.sum;
      std::ranges::transform(found->sample.histogram.counts, sample.histogram.counts,
                             found->sample.histogram.counts.begin(), std::plus());
    }
  }
  std::vector<MetricSample> out;
  for (Joined& one : joined) {
    if (is_share) one.sample.value /= one.count;
    out.push_back(std::move(one.sample));
  }
  return out;
}

// The samples are of one model.
void add_family(std::string& metrics, const MetricFamily& family, std::span<const MetricSample> all) {
  const std::vector<MetricSample> samples = join_replicas(family, all);
  const bool is_histogram = family.type == MetricFamily::Type::kHistogram;
  const bool shown = !is_histogram || std::ranges::find(kShownHistograms, family.name) != std::end(kShownHistograms);
  if (samples.empty() || !shown) return;
  std::string value;
  if (is_histogram) {
    value = histogram_json(samples[0].histogram);
  } else if (!has_other_labels(samples[0])) {
    value = json_number(samples[0].value);
  } else {
    for (const MetricSample& sample : samples) {
      value += value.empty() ? '[' : ',';
      value += sample_json(sample);
    }
    value += ']';
  }
  metrics += fmt::format("{}{}:{}", metrics.empty() ? "" : ",", json_text(exposed_name(family)), value);
}

std::string& metrics_text(std::vector<ModelText>& models, std::string_view name) {
  const auto found = std::ranges::find(models, name, &ModelText::first);
  return found != models.end() ? found->second : models.emplace_back(name, "").second;
}

std::string_view model_of_sample(const MetricSample& sample) {
  const auto found = std::ranges::find(sample.labels, kModelLabel, &std::pair<std::string, std::string>::first);
  return found != sample.labels.end() ? std::string_view(found->second) : std::string_view();
}

}  // namespace

std::string snapshot(const Models& models) {
  std::vector<ModelText> texts;
  if (const ModelHost* host = models.host()) {
    for (const MetricFamily& family : host->metrics()) {
      for (const MetricSample& sample : family.samples) {
        add_family(metrics_text(texts, model_of_sample(sample)), family, std::span(&sample, 1));
      }
    }
  }
  for (const ServedModel& model : models.engines()) {
    std::string& text = metrics_text(texts, model.name);
    for (const MetricFamily& family : model.engine->metrics()) add_family(text, family, family.samples);
  }
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const double seconds = std::round(std::chrono::duration<double, std::milli>(now).count()) / 1000;
  std::string out = fmt::format(R"({{"time":{},"models":[)", seconds);
  for (const auto& [name, metrics] : texts) {
    out += fmt::format(R"({}{{"name":{},"metrics":{{{}}}}})", &metrics == &texts.front().second ? "" : ",",
                       json_text(name), metrics);
  }
  return out + "]}";
}

}  // namespace sluice::server
