// A library that registers one plugin, acme::Warp 1. TensorRT for RTX ships no headers: what a creator of plugins must
// have is declared here, in the order in which the library calls it.

#include <cstdint>

struct Interface {
    char const* kind;
    int32_t major;
    int32_t minor;
};

struct Fields {
    int32_t count;
    void const* fields;
};

class Versioned {
public:
    virtual int32_t language() const noexcept { return 0; }  // C++
    virtual Interface interface() const noexcept = 0;
    virtual ~Versioned() noexcept = default;
};

class Creator : public Versioned {
public:
    Interface interface() const noexcept override { return {"PLUGIN CREATOR_V3ONE", 1, 0}; }
    virtual void* create(char const*, Fields const*, int32_t) noexcept { return nullptr; }
    virtual Fields const* fields() noexcept { return &none; }
    virtual char const* name() const noexcept { return "Warp"; }
    virtual char const* version() const noexcept { return "1"; }
    virtual char const* space() const noexcept { return "acme"; }

private:
    Fields none{0, nullptr};
};

static Creator creator;
static Versioned* const creators[] = {&creator};

extern "C" Versioned* const* getCreators(int32_t& count) {
    count = 1;
    return creators;
}

extern "C" void setLoggerFinder(void*) {}
