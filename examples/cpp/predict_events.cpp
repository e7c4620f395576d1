// Predicts events with a network that `xectool export --to onnx` wrote (raw inputs: readings as the files have them).
//
//     predict_events MODEL.onnx EVENTS.bin [--batch N] [--threads N] [--dead IDS.txt]
//
// EVENTS.bin, little-endian: the 8 characters "XECEVT01", uint32 number of events, uint32 sensors (4760), then for each
// event float32 npho[4760] in photons and float32 time[4760] in seconds. NaN, infinity and 1e10 mean "no reading".
//
// A regressor prints one line an event: each task in its physical unit, and its uncertainty where the network has one.
// An autoencoder or inpainter fills the sensors without a reading and those of IDS.txt, and prints one line a sensor.

#include <onnxruntime_cxx_api.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr char kMagic[] = "XECEVT01";
constexpr std::size_t kMagicSize = 8;
constexpr float kUnknownAbove = 9.0e9f;

struct Options {
  std::string model, events, dead;
  std::size_t batch = 64;
  int threads = 0;  // 0: as many as ONNX Runtime finds
};

struct Events {
  std::size_t count = 0, sensors = 0;
  std::vector<float> npho, time;  // count x sensors each
};

struct Port {
  std::string name;
  std::vector<std::int64_t> shape;  // without the events
  std::size_t size = 1;             // numbers an event
};

Options parse(int argc, char** argv) {
  Options options;
  std::vector<std::string> files;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool takes_value = word == "--batch" || word == "--threads" || word == "--dead";
    if (takes_value && i + 1 == argc) throw std::runtime_error(word + " needs a value");
    if (word == "--batch") {
      options.batch = std::stoul(argv[++i]);
    } else if (word == "--threads") {
      options.threads = std::stoi(argv[++i]);
    } else if (word == "--dead") {
      options.dead = argv[++i];
    } else {
      files.push_back(word);
    }
  }
  if (files.size() != 2 || options.batch == 0)
    throw std::runtime_error("usage: predict_events MODEL.onnx EVENTS.bin [--batch N] [--threads N] [--dead IDS.txt]");
  options.model = files[0];
  options.events = files[1];
  return options;
}

void read_floats(std::istream& in, float* to, std::size_t count, const std::string& path) {
  in.read(reinterpret_cast<char*>(to), static_cast<std::streamsize>(count * sizeof(float)));
  if (!in) throw std::runtime_error(path + " ends inside an event");
}

Events read_events(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot open " + path);
  char magic[kMagicSize];
  std::uint32_t counts[2];
  in.read(magic, sizeof magic);
  in.read(reinterpret_cast<char*>(counts), sizeof counts);
  if (!in || std::memcmp(magic, kMagic, kMagicSize) != 0)
    throw std::runtime_error(path + " is no event file: it does not begin with " + kMagic);
  Events events;
  events.count = counts[0];
  events.sensors = counts[1];
  for (std::size_t i = 0; i < events.count; ++i) {  // grows as it reads: a wrong count cannot take all memory
    events.npho.resize((i + 1) * events.sensors);
    events.time.resize((i + 1) * events.sensors);
    read_floats(in, events.npho.data() + i * events.sensors, events.sensors, path);
    read_floats(in, events.time.data() + i * events.sensors, events.sensors, path);
  }
  return events;
}

std::string metadata(const Ort::Session& session, const std::string& key) {
  Ort::AllocatorWithDefaultOptions allocator;
  const auto found = session.GetModelMetadata().LookupCustomMetadataMapAllocated(key.c_str(), allocator);
  if (!found) throw std::runtime_error("the model lacks " + key + ": xectool did not export it");
  return found.get();
}

std::vector<Port> ports(const Ort::Session& session, bool inputs) {
  Ort::AllocatorWithDefaultOptions allocator;
  std::vector<Port> found(inputs ? session.GetInputCount() : session.GetOutputCount());
  for (std::size_t i = 0; i < found.size(); ++i) {
    const auto name = inputs ? session.GetInputNameAllocated(i, allocator) : session.GetOutputNameAllocated(i, allocator);
    const auto type = inputs ? session.GetInputTypeInfo(i) : session.GetOutputTypeInfo(i);
    const auto shape = type.GetTensorTypeAndShapeInfo().GetShape();
    found[i].name = name.get();
    found[i].shape.assign(shape.begin() + 1, shape.end());
    for (const auto size : found[i].shape) found[i].size *= static_cast<std::size_t>(size);
  }
  return found;
}

bool has_reading(float npho) { return std::isfinite(npho) && npho <= kUnknownAbove; }

std::vector<char> dead_sensors(const std::string& path, std::size_t sensors) {
  std::vector<char> dead(sensors, 0);
  if (path.empty()) return dead;
  std::ifstream in(path);
  if (!in) throw std::runtime_error("cannot open " + path);
  for (std::size_t id; in >> id;) {
    if (id >= sensors) throw std::runtime_error("there is no sensor " + std::to_string(id));
    dead[id] = 1;
  }
  return dead;
}

class Network {
 public:
  Network(const Options& options, const std::vector<char>& dead)
      : env_(ORT_LOGGING_LEVEL_WARNING, "predict_events"), session_(open(options)), dead_(dead) {
    if (metadata(session_, "xectool.inputs_mode") != "raw")
      throw std::runtime_error("the model takes normalised inputs: export it with --inputs raw");
    inputs_ = ports(session_, true);
    outputs_ = ports(session_, false);
  }

  const std::vector<Port>& outputs() const { return outputs_; }
  bool fills_sensors() const { return metadata(session_, "xectool.kind") != "regressor"; }
  const bool* mask() const { return mask_.get(); }
  std::string describe() const {
    return metadata(session_, "xectool.kind") + " from " + metadata(session_, "xectool.checkpoint") + ", units " +
           metadata(session_, "xectool.units");
  }

  // Returns one tensor an output for `count` events from `first` on.
  std::vector<Ort::Value> run(const Events& events, std::size_t first, std::size_t count) {
    const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
    const std::int64_t shape[] = {static_cast<std::int64_t>(count), static_cast<std::int64_t>(events.sensors)};
    const std::size_t begin = first * events.sensors, size = count * events.sensors;
    mask_.reset(new bool[size]);
    for (std::size_t i = 0; i < size; ++i) mask_[i] = dead_[i % events.sensors] != 0 || !has_reading(events.npho[begin + i]);
    std::vector<Ort::Value> given;
    std::vector<const char*> input_names, output_names;
    for (const auto& port : inputs_) {
      if (port.size != events.sensors) throw std::runtime_error(port.name + " takes another number of sensors");
      input_names.push_back(port.name.c_str());
      if (port.name == "mask") {
        given.push_back(Ort::Value::CreateTensor<bool>(memory, mask_.get(), size, shape, 2));
      } else {
        auto* values = const_cast<float*>((port.name == "npho" ? events.npho : events.time).data()) + begin;
        given.push_back(Ort::Value::CreateTensor<float>(memory, values, size, shape, 2));
      }
    }
    for (const auto& port : outputs_) output_names.push_back(port.name.c_str());
    return session_.Run(Ort::RunOptions{nullptr}, input_names.data(), given.data(), given.size(), output_names.data(),
                        output_names.size());
  }

 private:
  Ort::Session open(const Options& options) {
    Ort::SessionOptions settings;
    if (options.threads > 0) settings.SetIntraOpNumThreads(options.threads);
    settings.SetGraphOptimizationLevel(GraphOptimizationLevel::ORT_ENABLE_ALL);
    return Ort::Session(env_, options.model.c_str(), settings);
  }

  Ort::Env env_;
  Ort::Session session_;
  std::vector<char> dead_;
  std::vector<Port> inputs_, outputs_;
  std::unique_ptr<bool[]> mask_;
};

void print_event(const std::vector<Ort::Value>& values, const std::vector<Port>& outputs, std::size_t event, std::size_t row) {
  std::cout << event;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const float* numbers = values[i].GetTensorData<float>() + row * outputs[i].size;
    for (std::size_t k = 0; k < outputs[i].size; ++k) std::cout << '\t' << numbers[k];
  }
  std::cout << '\n';
}

void print_sensors(const std::vector<Ort::Value>& values, const Network& network, std::size_t event, std::size_t row) {
  const std::size_t sensors = network.outputs()[0].size;
  for (std::size_t id = 0; id < sensors; ++id) {
    if (!network.mask()[row * sensors + id]) continue;
    std::cout << event << '\t' << id;
    for (const auto& value : values) std::cout << '\t' << value.GetTensorData<float>()[row * sensors + id];
    std::cout << '\n';
  }
}

void print_heading(const Network& network) {
  std::cout << "event" << (network.fills_sensors() ? "\tsensor" : "");
  for (const auto& port : network.outputs()) {
    const std::size_t columns = network.fills_sensors() ? 1 : port.size;
    for (std::size_t k = 0; k < columns; ++k)
      std::cout << '\t' << port.name << (columns > 1 ? "[" + std::to_string(k) + "]" : "");
  }
  std::cout << '\n' << std::setprecision(9);
}

void predict(const Options& options) {
  const Events events = read_events(options.events);
  Network network(options, dead_sensors(options.dead, events.sensors));
  std::cerr << network.describe() << '\n';
  print_heading(network);
  for (std::size_t first = 0; first < events.count; first += options.batch) {
    const std::size_t count = std::min(options.batch, events.count - first);
    const auto values = network.run(events, first, count);
    for (std::size_t row = 0; row < count; ++row) {
      if (network.fills_sensors()) {
        print_sensors(values, network, first + row, row);
      } else {
        print_event(values, network.outputs(), first + row, row);
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    predict(parse(argc, argv));
  } catch (const std::exception& error) {  // Ort::Exception is one too
    std::cerr << "predict_events: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
