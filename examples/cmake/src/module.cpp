// The Python module furnace._kernels: functions of kernels.hpp on buffers of doubles.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "kernels.hpp"

namespace {

PyObject* py_descend(PyObject*, PyObject* args) {
    Py_buffer inputs, targets, weights;
    double rate;
    if (!PyArg_ParseTuple(args, "y*y*w*d", &inputs, &targets, &weights, &rate)) {
        return nullptr;
    }
    const std::size_t rows = targets.len / sizeof(double), columns = weights.len / sizeof(double);
    PyObject* result = nullptr;
    if (rows == 0 || inputs.len != static_cast<Py_ssize_t>(rows * columns * sizeof(double))) {
        PyErr_SetString(PyExc_ValueError, "the inputs need a row for each target");
    } else {
        result = PyFloat_FromDouble(descend(
            static_cast<const double*>(inputs.buf), static_cast<const double*>(targets.buf),
            static_cast<double*>(weights.buf), rows, columns, rate));
    }
    PyBuffer_Release(&inputs);
    PyBuffer_Release(&targets);
    PyBuffer_Release(&weights);
    return result;
}

PyMethodDef methods[] = {
    {"descend", py_descend, METH_VARARGS, "descend(inputs, targets, weights, rate) -> loss"},
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_kernels", nullptr, -1, methods};

}  // namespace

PyMODINIT_FUNC PyInit__kernels() { return PyModule_Create(&definition); }
