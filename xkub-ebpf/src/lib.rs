//! Empty: gives the package a library target, so that others can depend on its being unchanged.
#![no_std]
