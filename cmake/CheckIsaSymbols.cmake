# Fails when an object of one instruction set defines code that another object may end up calling.
#
#   cmake -DNM=nm -DISA=avx512 "-DOBJECTS=a.o|b.o" -P CheckIsaSymbols.cmake
#
# An inline function or a template that the compiler didn't inline becomes a weak symbol. The linker
# keeps one copy for the whole program, and may keep the one that needs AVX-512, which then runs on
# processors without it. So every function an object defines must have the namespace
# scanrnn::cpu::<isa> in its name, its own or that of a template argument. Weak data (type
# information, tables) holds no instructions and is left alone.
string(REPLACE "|" ";" objects "${OBJECTS}")
if(NOT objects)
    message(FATAL_ERROR "no objects given for ${ISA}")
endif()

set(found 0)
set(bad)
foreach(object ${objects})
    execute_process(
        COMMAND ${NM} -C --defined-only ${object}
        OUTPUT_VARIABLE text
        COMMAND_ERROR_IS_FATAL ANY
    )
    string(REPLACE ";" "," text "${text}")
    string(REPLACE "[" "(" text "${text}")
    string(REPLACE "]" ")" text "${text}")
    string(REGEX MATCHALL "[0-9a-fA-F]+ [WT] [^\n]+" functions "${text}")
    foreach(function ${functions})
        math(EXPR found "${found} + 1")
        if(NOT function MATCHES "scanrnn::cpu::${ISA}::")
            string(REGEX REPLACE "^[0-9a-fA-F]+ " "" function "${function}")
            get_filename_component(name ${object} NAME)
            list(APPEND bad "  ${name}: ${function}")
        endif()
    endforeach()
endforeach()

if(bad)
    list(JOIN bad "\n" bad)
    message(
        FATAL_ERROR
        " compiled for ${ISA}, but defined outside of scanrnn::cpu::${ISA} (make them always-inline or move them into it):\n${bad}"
    )
endif()
message(STATUS "${found} functions in the ${ISA} objects, all in scanrnn::cpu::${ISA}")
