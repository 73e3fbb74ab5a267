// See row_mover.h.
#include "engine/row_mover.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <limits>
#include <numeric>
#include <span>
#include <utility>

#include "base/bytes.h"
#include "base/log.h"
#include "engine/fingerprint.h"
#include "engine/ranks.h"

namespace sluice {
namespace {

constexpr size_t kHostBytes = size_t{1} << 30;     // default, where another option needs them
constexpr int64_t kFileBytes = int64_t{16} << 30;  // default
constexpr int kFileThreads = 4;
constexpr size_t kRowsOfPart = 8;  // that are packed together; then they are copied while others are packed
// Transfers on host memory are as small as this, so that they share the memory's bandwidth with steps in turns.
constexpr size_t kHostTransferBytes = size_t{8} << 20;

std::vector<int> each_row_of(const RowTransfer& transfer) {
  std::vector<int> indices(transfer.rows.size());
  std::iota(indices.begin(), indices.end(), 0);
  return indices;
}

// What values outside of this process depend on besides the hashes of their rows.
std::string identity_of(const LoadPlan& plan) {
  std::string text =
      fmt::format("{}\nbackend {}\nblocks of {}\n", model_fingerprint(plan), plan.backend->name, plan.block_size);
  for (const BlockGroup& group : plan.kv.groups)
    text += fmt::format("group {} {}\n", group.window, group.ids_per_block);
  for (const KvLayout::Place& place : plan.kv.places) text += fmt::format("place {} {}\n", place.k, place.v);
  if (const ops::KeyShare& share = plan.kv.share; !share.whole()) {
    text += fmt::format("part {} of {} in runs of {}\n", share.part, share.parts, share.run);
  }
  if (plan.ranks.many()) text += fmt::format("rank {} of {}\n", plan.ranks.rank, plan.ranks.size);
  if (plan.stage.many()) text += fmt::format("stage {} of {}\n", plan.stage.rank, plan.stage.size);
  for (size_t i = 0; i < plan.kv.shapes.size(); ++i) {
    if (!plan.kv.shapes[i].held) text += fmt::format("without layer {}\n", i);
  }
  for (const KvLayout::Layer& layer : plan.kv.layers) {
    text += fmt::format("layer {} {} {}\n", layer.group, layer.place, layer.part);
  }
  return text;
}

// When a server is killed, its other ranks notice it a moment later. One that is started at once waits for them.
std::chrono::milliseconds patience_of(const LoadPlan& plan) {
  const bool leads = plan.communicator == nullptr || plan.communicator->rank() == 0;
  return leads ? std::chrono::milliseconds(0) : std::chrono::seconds(5);
}

}  // namespace

size_t host_row_bytes(const EngineOptions& options) {
  return options.kv_host_memory_bytes > 0 ? static_cast<size_t>(options.kv_host_memory_bytes) : kHostBytes;
}

int64_t file_row_bytes(const EngineOptions& options) {
  return options.kv_disk_bytes > 0 ? options.kv_disk_bytes : kFileBytes;
}

RowMover::RowMover(const EngineOptions& options, const LoadedModel& loaded, std::function<void()> wake,
                   RowServer::Events events)
    : loaded_(loaded),
      wake_(std::move(wake)),
      groups_(loaded.plan.kv.groups.size()),
      block_bytes_(loaded.kv->packed_bytes()),
      row_bytes_(groups_ * block_bytes_),
      threads_([this] { stop(); }) {
  ops::Device& device = *loaded.plan.device;
  const bool staged = !device.memory().host_accessible();
  if (row_bytes_ == 0) {
    throw Error(ErrorCode::kUnsupportedModel,
                fmt::format("--pipeline-parallel-size {}: stage {} has no keys and values to keep",
                            options.pipeline_parallel_size, loaded.plan.stage.rank));
  }
  const auto ranks = static_cast<size_t>(ranks_of(options));
  const size_t host_bytes = host_row_bytes(options) / ranks, slots = host_bytes / row_bytes_;
  if (slots < 2) {
    throw Error(ErrorCode::kInvalidRequest,
                fmt::format("--kv-host-memory-bytes: {} have no room for two rows of {}{}", format_bytes(host_bytes),
                            format_bytes(row_bytes_), ranks > 1 ? " on each rank" : ""));
  }
  host_slots_ = static_cast<int>(std::min<size_t>(slots, std::numeric_limits<int>::max()));
  const size_t fit = (staged ? kStagedRowBytes : kHostTransferBytes) / row_bytes_;
  rows_per_transfer_ = std::clamp(static_cast<int>(std::min<size_t>(fit, 1024)), 1, std::max(1, host_slots_ / 4));
  if (!options.kv_disk.empty()) {
    file_ = std::make_unique<RowFile>(options.kv_disk, identity_of(loaded.plan), row_bytes_,
                                      static_cast<size_t>(file_row_bytes(options)) / ranks, patience_of(loaded.plan));
  }
  host_ = Buffer(static_cast<size_t>(host_slots_) * row_bytes_, device.pinned_memory());
  for (Lane* lane : {&save_, &load_}) make_lane(*lane);
  threads_.start([this] { run_lane(save_, true); });
  threads_.start([this] { run_lane(load_, false); });
  for (int i = 0; file_ != nullptr && i < kFileThreads; ++i) threads_.start([this] { run_file(); });
  const Hello hello = make_hello(row_bytes_, identity_of(loaded.plan));
  if (options.kv_transfer_backend == "ucx") ucx_ = Ucx::load({host_.data(), host_.size()});
  const MakeStream make_stream = [this](std::unique_ptr<TcpStream> connection) -> std::unique_ptr<ByteStream> {
    if (ucx_ == nullptr) return connection;
    return ucx_->make_stream(std::move(connection));
  };
  const RowBytes bytes = [this](int slot) { return host_row(slot); };
  const TransferDone done = [this](const RowTransfer& transfer, std::vector<int> failed) {
    if (transfer.id == RowSends::kRefusal) return;
    add_done({.transfer = transfer.id, .failed = std::move(failed)});
  };
  if (!options.kv_transfer_listen.empty()) {
    sends_ = std::make_unique<RowSends>(
        static_cast<size_t>(host_slots_),
        [this](std::shared_ptr<const RowTransfer> transfer) { server_->start(std::move(transfer)); },
        [this](const std::shared_ptr<const RowTransfer>& transfer) {
          add_done({.transfer = transfer->id, .failed = each_row_of(*transfer)});
        });
    server_ =
        std::make_unique<RowServer>(options.kv_transfer_listen, hello, make_stream, bytes, std::move(events), done);
  }
  if (!options.kv_transfer_peer.empty()) {
    const std::chrono::milliseconds silence(options.kv_transfer_timeout_ms);
    clients_ = std::make_unique<RowClients>(hello, make_stream, silence, bytes, done);
  }
}

RowMover::~RowMover() {
  threads_.join();  // they use the server
  clients_.reset();
  server_.reset();
}

void RowMover::make_lane(Lane& lane) {
  ops::Device& device = *loaded_.plan.device;
  lane.packs = device.make_copy_queue(thread_);
  lane.copies = device.make_copy_queue(thread_);
  const size_t rows = static_cast<size_t>(rows_per_transfer_), indices = rows * groups_ * 2 * sizeof(int32_t);
  lane.indices = Buffer(indices, device.memory());
  lane.pinned = Buffer(indices, device.pinned_memory());
  if (!device.memory().host_accessible()) lane.staged = Buffer(rows * row_bytes_, device.memory());
}

RowStoreOptions RowMover::store_options() const {
  return {.host_slots = host_slots_,
          .file_slots = file_ != nullptr ? file_->slots() : 0,
          .rows_per_transfer = rows_per_transfer_,
          .rows_per_fetch = static_cast<int>(kMostWanted)};
}

std::vector<RowFile::Kept> RowMover::take_kept() {
  return file_ != nullptr ? file_->take_kept() : std::vector<RowFile::Kept>();
}

std::span<std::byte> RowMover::host_row(int slot) const {
  return {host_.data() + static_cast<size_t>(slot) * row_bytes_, row_bytes_};
}

void RowMover::start(std::vector<std::shared_ptr<const RowTransfer>> transfers) {
  using Kind = RowTransfer::Kind;
  const auto is_remote = [](Kind kind) {
    return kind == Kind::kReceive || kind == Kind::kSend || kind == Kind::kRefuse;
  };
  if (sends_ != nullptr) {
    for (const std::shared_ptr<const RowTransfer>& transfer : transfers) sends_->note(*transfer);
  }
  size_t remote = 0;
  for (const std::shared_ptr<const RowTransfer>& transfer : transfers) {
    if (!is_remote(transfer->kind)) continue;
    ++remote;
    if (transfer->kind == Kind::kReceive) {
      clients_->start(transfer);
    } else {
      sends_->start(transfer);
    }
  }
  if (remote == transfers.size()) return;
  const uint64_t event = loaded_.plan.queue->record_event();
  const std::scoped_lock lock(mutex_);
  for (std::shared_ptr<const RowTransfer>& transfer : transfers) {
    if (is_remote(transfer->kind)) continue;
    ++open_;
    const auto job = std::make_shared<Job>(Job{.transfer = std::move(transfer), .event = event});
    const std::vector<RowTransfer::Row>& rows = job->transfer->rows;
    const Kind kind = job->transfer->kind;
    job->failed.resize(rows.size());
    for (int row = 0; row < static_cast<int>(rows.size()); ++row) {
      if (kind == Kind::kSave || rows[row].file_slot < 0) continue;
      ++job->file_rows;
      (kind == Kind::kLoad ? reads_ : writes_).push_back({.job = job, .row = row});
    }
    if (kind == Kind::kClear) {
      job->file_rows = 1;
      writes_.push_back({.job = job, .row = -1});
    }
    if (kind == Kind::kSave) save_.jobs.push_back(job);
    if (kind == Kind::kLoad) load_.jobs.push_back(job);
  }
  save_.wake.notify_one();
  load_.wake.notify_one();
  file_work_.notify_all();
}

std::vector<RowMover::Done> RowMover::take_done() {
  const std::scoped_lock lock(mutex_);
  return std::exchange(done_, {});
}

void RowMover::end(Job& job) {
  if (sends_ != nullptr && job.transfer->kind == RowTransfer::Kind::kSave) sends_->end_save(*job.transfer, job.failed);
  Done done{.transfer = job.transfer->id};
  for (int row = 0; row < static_cast<int>(job.failed.size()); ++row) {
    if (job.failed[row] != 0) done.failed.push_back(row);
  }
  add_done(std::move(done));
  --open_;
}

void RowMover::add_done(Done done) {
  {
    const std::scoped_lock lock(mutex_);
    done_.push_back(std::move(done));
  }
  wake_();
}

// Takes jobs in order. One that loads waits until its rows of the file are in host memory.
void RowMover::run_lane(Lane& lane, bool saves) {
  for (;;) {
    std::shared_ptr<Job> job;
    {
      std::unique_lock lock(mutex_);
      lane.wake.wait(lock,
                     [&] { return stopping_ || (!lane.jobs.empty() && (saves || lane.jobs.front()->file_rows == 0)); });
      if (stopping_) return;
      job = lane.jobs.front();
      lane.jobs.pop_front();
    }
    try {
      move(lane, *job, saves);
    } catch (const std::exception& e) {
      log::error("moving keys and values: {}", e.what());
      std::ranges::fill(job->failed, 1);
    }
    end(*job);
  }
}

// Copies between blocks and host memory, by way of packed rows on the device if it does not work on host memory.
void RowMover::move(Lane& lane, Job& job, bool saves) {
  const std::vector<RowTransfer::Row>& rows = job.transfer->rows;
  const bool staged = lane.staged.size() > 0;
  ops::Ctx ctx(*lane.packs, no_arena_);
  const Tensor packed(staged ? lane.staged.data() : host_.data(), &kInt8,
                      {staged ? rows_per_transfer_ : host_slots_, static_cast<int64_t>(row_bytes_)});
  // Pairs of a block and a row, of all groups of the first rows, then of the rows behind them, ...
  auto* const pairs = reinterpret_cast<int32_t*>(lane.pinned.data());
  std::vector<size_t> ends;  // [parts, groups]
  size_t count = 0;
  for (size_t first = 0; first < rows.size(); first += kRowsOfPart) {
    for (size_t group = 0; group < groups_; ++group) {
      for (size_t i = first; i < std::min(first + kRowsOfPart, rows.size()); ++i) {
        const BlockId block = job.transfer->blocks[i * groups_ + group];
        if (block == kNoBlock || job.failed[i] != 0) continue;
        const int32_t row = staged ? static_cast<int32_t>(i) : rows[i].host_slot;
        pairs[count++] = saves ? block : row;
        pairs[count++] = saves ? row : block;
      }
      ends.push_back(count);
    }
  }
  if (count == 0) return;
  const Indices all({pairs, count}, reinterpret_cast<int32_t*>(lane.indices.data()));
  lane.packs->copy_async(lane.indices.data(), pairs, count * sizeof(int32_t));
  // Values that are saved are final then, and nobody uses the blocks that are loaded.
  lane.packs->run_after(*loaded_.plan.queue, job.event);
  size_t begin = 0;
  for (size_t part = 0; part * kRowsOfPart < rows.size(); ++part) {
    const size_t first = part * kRowsOfPart, last = std::min(first + kRowsOfPart, rows.size());
    if (staged && !saves) {
      copy_rows(lane, job, first, last, /*to_host=*/false);
      lane.packs->run_after(*lane.copies, lane.copies->record_event());
    }
    for (size_t group = 0; group < groups_; ++group) {
      const size_t end = ends[part * groups_ + group];
      const Indices own = all.part(begin, end - begin);
      if (saves) loaded_.kv->pack(ctx, packed, group * block_bytes_, own);
      if (!saves) loaded_.kv->unpack(ctx, packed, group * block_bytes_, own);
      begin = end;
    }
    if (staged && saves) {
      lane.copies->run_after(*lane.packs, lane.packs->record_event());
      copy_rows(lane, job, first, last, /*to_host=*/true);
    }
  }
  lane.copies->wait();
  lane.packs->wait();
}

// Copies rows between the device and host slots, those of neighbouring slots together.
void RowMover::copy_rows(Lane& lane, const Job& job, size_t begin, size_t end, bool to_host) {
  const std::vector<RowTransfer::Row>& rows = job.transfer->rows;
  for (size_t i = begin; i < end;) {
    size_t next = i + 1;
    while (next < end && rows[next].host_slot == rows[next - 1].host_slot + 1) ++next;
    std::byte* const host = host_row(rows[i].host_slot).data();
    std::byte* const device = lane.staged.data() + i * row_bytes_;
    lane.copies->copy_async(to_host ? host : device, to_host ? device : host, (next - i) * row_bytes_);
    i = next;
  }
}

// Reads come before writes, as sequences wait for them.
void RowMover::run_file() {
  for (;;) {
    FileTask task;
    {
      std::unique_lock lock(mutex_);
      file_work_.wait(lock, [this] { return stopping_ || !reads_.empty() || !writes_.empty(); });
      if (stopping_) return;
      std::deque<FileTask>& tasks = reads_.empty() ? writes_ : reads_;
      task = std::move(tasks.front());
      tasks.pop_front();
    }
    const bool ok = do_file(task);
    Job& job = *task.job;
    bool last = false;
    {
      const std::scoped_lock lock(mutex_);
      if (!ok && task.row >= 0) job.failed[static_cast<size_t>(task.row)] = 1;
      last = --job.file_rows == 0;
    }
    if (!last) continue;
    if (job.transfer->kind == RowTransfer::Kind::kLoad) {
      load_.wake.notify_one();
    } else {
      end(job);
    }
  }
}

bool RowMover::do_file(const FileTask& task) {
  const RowTransfer& transfer = *task.job->transfer;
  if (task.row < 0) return file_->begin_epoch(transfer.epoch);
  const RowTransfer::Row& row = transfer.rows[static_cast<size_t>(task.row)];
  const std::span<std::byte> bytes = host_row(row.host_slot);
  if (transfer.kind == RowTransfer::Kind::kLoad) {
    if (file_->read(row.file_slot, row.hash, bytes)) return true;
  } else {
    if (file_->write(row.file_slot, row.hash, transfer.epoch, bytes)) return true;
  }
  const std::scoped_lock lock(mutex_);
  const bool reads = transfer.kind == RowTransfer::Kind::kLoad;
  if (!std::exchange(reads ? read_failed_ : write_failed_, true)) {
    log::warning("{}: {}; this is said once, the metric sluice:kv_rows_failed counts", file_->path(),
                 reads ? "damaged rows are not used" : "cannot be written, is the disk full?");
  }
  return false;
}

void RowMover::stop() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  save_.wake.notify_all();
  load_.wake.notify_all();
  file_work_.notify_all();
}

}  // namespace sluice
