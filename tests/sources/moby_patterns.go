// Which paths moby's patternmatcher excludes; for the tests of .dockerignore.
//
// Reads lines of JSON, {"text": …, "paths": […]}, and answers each with the excluded paths, or with
// null if the text is refused.
package main

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/patternmatcher"
)

// read does what moby's package "ignorefile" does, which Debian's package does not have.
func read(text string) (patterns []string) {
	for i, line := range strings.Split(text, "\n") {
		if i == 0 {
			line = strings.TrimPrefix(line, "\xef\xbb\xbf")
		}
		line = strings.TrimSuffix(line, "\r")
		if strings.HasPrefix(line, "#") {
			continue
		}
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		mark := ""
		if line[0] == '!' {
			mark, line = "!", strings.TrimSpace(line[1:])
		}
		if len(line) > 0 {
			line = filepath.ToSlash(filepath.Clean(line))
			if len(line) > 1 && line[0] == '/' {
				line = line[1:]
			}
		}
		patterns = append(patterns, mark+line)
	}
	return patterns
}

func match(matcher *patternmatcher.PatternMatcher, path string) (bool, error) {
	var info patternmatcher.MatchInfo
	var excluded bool
	parts := strings.Split(path, "/")
	for i := range parts {
		var err error
		excluded, info, err = matcher.MatchesUsingParentResults(strings.Join(parts[:i+1], "/"), info)
		if err != nil {
			return false, err
		}
	}
	return excluded, nil
}

func main() {
	input := bufio.NewScanner(os.Stdin)
	input.Buffer(nil, 1<<24)
	output := json.NewEncoder(os.Stdout)
	for input.Scan() {
		var request struct {
			Text  string
			Paths []string
		}
		if err := json.Unmarshal(input.Bytes(), &request); err != nil {
			panic(err)
		}
		matcher, err := patternmatcher.New(read(request.Text))
		excluded := []string{}
		for _, path := range request.Paths {
			if err != nil {
				break
			}
			var is bool
			is, err = match(matcher, path)
			if is {
				excluded = append(excluded, path)
			}
		}
		if err != nil {
			excluded = nil
		}
		output.Encode(excluded)
	}
}
