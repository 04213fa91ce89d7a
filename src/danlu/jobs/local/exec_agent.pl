# Do the same as exec_agent.py, in an image that has no Python: Debian's all have this much of Perl.
use strict;
use warnings;
use POSIX ();
use Socket qw(AF_UNIX SOCK_STREAM SOL_SOCKET SCM_RIGHTS sockaddr_un);

my ($path, @words) = @ARGV;
while ($words[0] =~ /^-/) {
    shift @words if shift(@words) =~ /^-[BbcDEeFIiJLlmOoPpQRSWw]$/;
}
my $target = shift @words;
my $failed = sub { print STDERR "$target: $_[0]\n"; exit($_[1] || 1) };

sub quote {
    my ($text) = @_;
    $text =~ s/([\x00-\x1f"\\\x7f])/sprintf '\\u%04x', ord $1/ge;
    return "\"$text\"";
}
my $args = join ', ', map { quote($_) } '/bin/sh', '-c', "@words";
my $line = '{"do": "exec", "target": ' . quote($target) . ", \"args\": [$args]}\n";

# A socket address holds 107 bytes; the directory's path may be longer.
my ($directory, $name) = $path =~ m{(.*)/(.*)};
chdir $directory or $failed->("$directory: $!");
socket my $connection, AF_UNIX, SOCK_STREAM, 0 or $failed->("socket: $!");
alarm 30;
connect $connection, sockaddr_un($name) or $failed->("$name: $!");
alarm 0;

# Perl has no sendmsg(2): struct iovec, cmsghdr with the three streams, msghdr of 64-bit systems.
my $vector = pack 'P Q', $line, length $line;
my $rights = pack 'Q i i i3 x4', 28, SOL_SOCKET, SCM_RIGHTS, 0, 1, 2;
my $message = pack 'Q Q P Q P Q Q', 0, 0, $vector, 1, $rights, length $rights, 0;
my $number = (POSIX::uname())[4] eq 'x86_64' ? 46 : 211;
my $sent = syscall $number, fileno($connection), $message, 0;
$failed->("sendmsg: $!") if $sent < 0;
syswrite $connection, substr $line, $sent if $sent < length $line;

my $response = <$connection> // '{"error": "the supervisor exited"}';
my ($code) = $response =~ /"code": ?(\d+)/;
$failed->($1, $code) if $response =~ /"error": ?"((?:[^"\\]|\\.)+)"/;
exit($code || 0);
