#include <cstdlib>
#include <iostream>

#include "sieve.hpp"

int main(int argc, char** argv) {
    const auto primes = primes_up_to(argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 100);
    std::cout << primes.size() << " primes, the largest " << primes.back() << "\n";
}
