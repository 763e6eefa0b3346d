"""No object that anybody can write takes the operator down, nor keeps it from another service: `make fuzz`."""
